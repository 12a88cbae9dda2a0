#pragma once

#include <string>
#include <utility>
#include <vector>

#include "snug/plan/step/step_graph.h"
#include "snug/plan/step/together.h"

namespace snug::plan::synthetic {

/// Writes a StepGraph event by event.
class GraphBuilder {
 public:
  explicit GraphBuilder(Bytes static_bytes = 0) {
    graph_.static_bytes = static_bytes;
    graph_.static_by_tag[0] = static_bytes;
  }

  ValueId leaf() {
    graph_.values.emplace_back();
    return graph_.flow.add_leaf();
  }

  /// Runs an operator with one new output.
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, Bytes bytes, double seconds = 1,
             Bytes workspace = 0) {
    begin_op(name, inputs, seconds, workspace);
    return fresh(bytes);
  }
  /// Runs an operator that overwrites `target`, which it reads when it is among the inputs.
  ValueId in_place(const std::string& name, const std::vector<ValueId>& inputs, ValueId target, double seconds = 1) {
    begin_op(name, inputs, seconds, 0);
    return written(target);
  }

  /// For operators with several outputs: begin_op, then fresh() and written() for each.
  void begin_op(const std::string& name, const std::vector<ValueId>& inputs, double seconds, Bytes workspace) {
    const OpId id = graph_.flow.add_op(inputs, kRootSegment, runs_of(name));
    OpInfo info;
    info.name = name;
    info.signature = std::hash<std::string>()(name) + inputs.size();
    info.seconds = seconds;
    info.peak_bytes = workspace;
    graph_.ops.push_back(std::move(info));
    graph_.step_seconds += 3 * seconds;
    graph_.events.push_back({Event::Kind::Run, id, 0, 0, seconds});
  }
  ValueId fresh(Bytes bytes) {
    graph_.ops.back().peak_bytes += bytes;
    return output(kNoValue, bytes);
  }
  ValueId written(ValueId target) { return output(target, graph_.values[static_cast<std::size_t>(target)].bytes); }

  void die(ValueId value) { graph_.events.push_back({Event::Kind::Die, value, 0, 0, 0}); }
  void save(ValueId value) {
    graph_.values[static_cast<std::size_t>(value)].saved = true;
    graph_.events.push_back({Event::Kind::Save, value, 0, 0, 0});
  }
  void settle() { graph_.events.push_back({Event::Kind::Settle, -1, 0, 0, 0}); }
  void unpack(ValueId value) { graph_.events.push_back({Event::Kind::Unpack, value, 0, 0, 0}); }
  void release(ValueId value) { graph_.events.push_back({Event::Kind::Release, value, 0, 0, 0}); }
  void other(Bytes peak, Bytes net) { graph_.events.push_back({Event::Kind::Other, -1, peak, net, 0}); }

  /// A backward node: unpacks what its operator saved, allocates, and releases.
  void node(const std::vector<ValueId>& saved, Bytes peak) {
    for (ValueId v : saved) unpack(v);
    other(peak, 0);
    for (ValueId v : saved) release(v);
  }

  StepGraph& graph() { return graph_; }
  /// Operators take their seconds in forward, and twice as long in backward, evenly over its events.
  StepGraph take() {
    double forward = 0;
    for (const Event& e : graph_.events) forward += e.seconds;
    const std::size_t first = graph_.settle_event() + 1;
    const std::size_t backward = graph_.events.size() > first ? graph_.events.size() - first : 0;
    for (std::size_t i = first; i < graph_.events.size(); ++i) {
      graph_.events[i].seconds = (graph_.step_seconds - forward) / static_cast<double>(backward);
    }
    return std::move(graph_);
  }

 private:
  ValueId output(ValueId overwrites, Bytes bytes) {
    graph_.values.push_back({bytes, false});
    return graph_.flow.add_output(overwrites);
  }
  StepGraph graph_;
};

/// What a GPT-like chain is made of.
struct Chain {
  int blocks = 4;
  Bytes width = 1_MiB;  ///< bytes of one hidden state
  Bytes static_bytes = 10_MiB;
};

inline constexpr int kOpsBefore = 1;  ///< the embedding
inline constexpr int kOpsPerBlock = 10;

/// An embedding, `blocks` blocks of attention and MLP with residuals, and a loss; saved values as autograd has them,
/// and backward in reverse order.
inline StepGraph gpt_like(const Chain& chain) {
  const Bytes w = chain.width;
  GraphBuilder b(chain.static_bytes);
  std::vector<std::vector<ValueId>> saved;  // by operator
  const auto run = [&](const std::string& name, const std::vector<ValueId>& inputs, Bytes bytes, double seconds,
                       bool saves_input, bool saves_output = false) {
    const ValueId out = b.op(name, inputs, bytes, seconds);
    saved.emplace_back();
    if (saves_input) saved.back().push_back(inputs[0]);
    if (saves_output) saved.back().push_back(out);
    for (ValueId v : saved.back()) b.save(v);
    return out;
  };
  const ValueId tokens = b.leaf();
  const ValueId weight = b.leaf();
  ValueId x = run("aten::embedding", {tokens, weight}, w, 0.5, true);
  for (int i = 0; i < chain.blocks; ++i) {
    const ValueId norm1 = run("aten::native_layer_norm", {x}, w, 0.2, true);
    const ValueId qkv = run("aten::addmm", {norm1, weight}, 3 * w, 3, true);
    b.die(norm1);
    const ValueId attended = run("aten::scaled_dot_product_attention", {qkv}, w, 4, true, true);
    b.die(qkv);
    const ValueId projected = run("aten::addmm", {attended, weight}, w, 1, true);
    b.die(attended);
    const ValueId middle = run("aten::add", {x, projected}, w, 0.1, false);
    b.die(x);
    b.die(projected);
    const ValueId norm2 = run("aten::native_layer_norm", {middle}, w, 0.2, true);
    const ValueId wide = run("aten::addmm", {norm2, weight}, 4 * w, 4, true);
    b.die(norm2);
    const ValueId active = run("aten::gelu", {wide}, 4 * w, 0.8, true);
    b.die(wide);
    const ValueId narrow = run("aten::addmm", {active, weight}, w, 4, true);
    b.die(active);
    x = run("aten::add", {middle, narrow}, w, 0.1, false);
    b.die(middle);
    b.die(narrow);
  }
  const ValueId loss = run("aten::loss", {x}, 4_KiB, 0.3, true);
  b.die(x);
  b.settle();
  for (auto values = saved.rbegin(); values != saved.rend(); ++values) b.node(*values, 2 * w);
  b.die(loss);
  return b.take();
}

/// What a deep residual transformer is made of.
struct DeepNet {
  int blocks = 30;
  Bytes width = 2_MiB;  ///< bytes of the residual stream, which is wider than what the blocks compute with
};

inline constexpr int kOpsPerDeepBlock = 52;

/// As a recorded step of a pretrained model with adapters on every projection looks: rotary tables and a mask that all
/// blocks read, then blocks of kOpsPerDeepBlock operators. Each block's input is read by a norm, which saves it, and by
/// the residual sum at the far end of its branch; copies in another type feed products that the frozen weights and two
/// adapters take part in. Backward leaves small gradients of adapters behind.
inline StepGraph deep_net(const DeepNet& net) {
  const Bytes w = net.width, h = w / 2, rank = w / 32, table = w / 16;
  GraphBuilder b(8 * w);
  struct Node {
    std::vector<ValueId> saved;
    Bytes peak, gradient;
  };
  std::vector<Node> nodes;
  const auto run = [&](const std::string& name, const std::vector<ValueId>& inputs, Bytes bytes, double seconds,
                       const std::vector<ValueId>& saved = {}, Bytes gradient = 0) {
    const ValueId out = b.op("aten::" + name, inputs, bytes, seconds);
    for (ValueId v : saved) b.save(v);
    nodes.push_back({saved, 2 * bytes, gradient});
    return out;
  };
  const auto die = [&](std::initializer_list<ValueId> values) {
    for (ValueId v : values) b.die(v);
  };
  const ValueId tokens = b.leaf(), weight = b.leaf();
  const ValueId angles = run("outer", {tokens}, table, 0.01);
  const ValueId cosines = run("cos", {angles}, table, 0.01), sines = run("sin", {angles}, table, 0.01);
  const ValueId mask = run("triu", {tokens}, table, 0.01);
  b.die(angles);
  // Reads 4, saves what products and adapters need.
  const auto projected = [&](ValueId x, Bytes bytes) {
    const ValueId copy = run("_to_copy", {weight}, 4_KiB, 0.001);
    const ValueId dense = run("mm", {x, weight}, bytes, 3);
    const ValueId down = run("mm", {x, copy}, rank, 0.2, {x, copy}, 4_KiB);
    const ValueId up = run("mm", {down, weight}, bytes, 0.2, {down}, 4_KiB);
    const ValueId sum = run("add", {dense, up}, bytes, 0.1);
    die({copy, dense, down, up});
    return sum;
  };
  const auto normed = [&](ValueId x) {
    const ValueId squares = run("pow", {x}, w, 0.1, {x});
    const ValueId mean = run("mean", {squares}, 4_KiB, 0.05);
    const ValueId root = run("rsqrt", {mean}, 4_KiB, 0.01);
    b.save(root);
    nodes.back().saved = {root};
    const ValueId scaled = run("mul", {x, root}, w, 0.1, {x, root});
    const ValueId copy = run("_to_copy", {scaled}, h, 0.05);
    die({squares, mean, root, scaled});
    return copy;
  };
  const auto turned = [&](ValueId q) {
    const ValueId a = run("mul", {q, cosines}, h, 0.05, {cosines}), c = run("mul", {q, sines}, h, 0.05, {sines});
    const ValueId sum = run("add", {a, c}, h, 0.05);
    die({a, c});
    return sum;
  };
  ValueId x = run("embedding", {tokens, weight}, w, 0.5);
  for (int i = 0; i < net.blocks; ++i) {
    const ValueId n1 = normed(x);
    const ValueId q = projected(n1, h), k = projected(n1, h), v = projected(n1, h);
    b.die(n1);
    const ValueId tq = turned(q), tk = turned(k);
    die({q, k});
    const ValueId attended = run("_scaled_dot_product_attention", {tq, tk, v, mask}, h, 6, {tq, tk, v, mask});
    b.save(attended);
    nodes.back().saved.push_back(attended);
    die({tq, tk, v});
    const ValueId out = projected(attended, h);
    b.die(attended);
    const ValueId middle = run("add", {x, out}, w, 0.1);
    die({x, out});
    const ValueId n2 = normed(middle);
    const ValueId gate = projected(n2, 2 * w), wide = projected(n2, 2 * w);
    b.die(n2);
    const ValueId active = run("silu", {gate}, 2 * w, 0.2, {gate});
    b.die(gate);
    const ValueId product = run("mul", {active, wide}, 2 * w, 0.2, {active, wide});
    die({active, wide});
    const ValueId narrow = run("mm", {product, weight}, h, 4);
    b.die(product);
    x = run("add", {middle, narrow}, w, 0.1);
    die({middle, narrow});
  }
  const ValueId loss = run("loss", {x}, 4_KiB, 0.3, {x});
  b.die(x);
  b.settle();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    for (ValueId v : node->saved) b.unpack(v);
    b.other(node->peak, node->gradient);
    for (ValueId v : node->saved) b.release(v);
  }
  die({cosines, sines, mask, loss});
  return b.take();
}

/// A chain of `steps` equal operators, each of which saves its input. One second and 1 MiB each; running one and going
/// back over one both take so much for themselves that the peak is the same at every operator.
inline StepGraph uniform_chain(int steps) {
  constexpr Bytes kWorkspace = 3_MiB;
  GraphBuilder b;
  std::vector<ValueId> inputs{b.leaf()};
  for (int i = 0; i < steps; ++i) {
    inputs.push_back(b.op("f", {inputs.back()}, 1_MiB, 1, kWorkspace));
    b.save(inputs[static_cast<std::size_t>(i)]);
    if (i > 0) b.die(inputs[static_cast<std::size_t>(i)]);
  }
  b.die(inputs.back());
  b.settle();
  for (int i = steps - 1; i >= 0; --i) b.node({inputs[static_cast<std::size_t>(i)]}, kWorkspace + 1_MiB);
  return b.take();
}

/// The peak of uniform_chain with room for `checkpoints` inputs at a time, its own input among them.
inline constexpr Bytes uniform_chain_peak(int checkpoints) { return (checkpoints + 4) * 1_MiB; }

/// Convolutions with a norm and a shortcut around each pair, whose sizes halve: pieces that differ, as in a ResNet.
inline StepGraph residual_net() {
  GraphBuilder b(8_MiB);
  std::vector<std::vector<ValueId>> saved;
  ValueId x = b.leaf();
  const ValueId weight = b.leaf();
  Bytes size = 8_MiB;
  double last = 0;
  for (int block = 0; block < 8; ++block) {
    if (block > 0 && block % 3 == 0) size /= 2;
    const double conv = 4.0 + block % 3;
    const ValueId a = b.op("conv", {x, weight}, size, conv), n = b.op("norm", {a}, size, 0.5);
    const ValueId r = b.op("relu", {n}, size, 0.3), c = b.op("conv", {r, weight}, size, conv);
    const ValueId m = b.op("norm", {c}, size, 0.5), s = b.op("add", {m, x}, size, 0.4);
    for (const ValueId v : {x, a, r, c}) {
      if (!b.graph().flow.is_leaf(v)) b.save(v);
    }
    saved.push_back({x, a, r, c});
    for (const ValueId v : {a, n, r, c, m}) b.die(v);
    if (block > 0) b.die(x);
    x = s;
    last += 2 * conv + 1.7;
  }
  const ValueId loss = b.op("loss", {x}, 4_KiB, 0.1);
  b.die(x);
  b.settle();
  for (auto values = saved.rbegin(); values != saved.rend(); ++values) {
    std::erase_if(*values, [&](ValueId v) { return b.graph().flow.is_leaf(v); });
    b.node(*values, 9_MiB);
  }
  b.die(loss);
  b.graph().step_seconds = 3 * last;
  return b.take();
}

}  // namespace snug::plan::synthetic
