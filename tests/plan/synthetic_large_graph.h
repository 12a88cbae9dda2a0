#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tests/plan/synthetic_graph.h"

namespace snug::plan::synthetic {

/// Writes operators that save their arguments, and in the end a backward node for each.
class SavingBuilder {
 public:
  explicit SavingBuilder(Bytes static_bytes) : builder_(static_bytes) {}
  ValueId leaf() { return builder_.leaf(); }
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, Bytes bytes, double seconds,
             const std::vector<ValueId>& saved = {}, bool saves_result = false) {
    const ValueId out = builder_.op("aten::" + name, inputs, bytes, seconds);
    nodes_.push_back({saved, 2 * bytes});
    if (saves_result) nodes_.back().saved.push_back(out);
    for (const ValueId v : nodes_.back().saved) builder_.save(v);
    return out;
  }
  void die(std::initializer_list<ValueId> values) {
    for (const ValueId v : values) builder_.die(v);
  }
  StepGraph take(ValueId loss) {
    builder_.settle();
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) builder_.node(node->saved, node->peak);
    builder_.die(loss);
    return builder_.take();
  }

 private:
  struct Node {
    std::vector<ValueId> saved;
    Bytes peak;
  };
  GraphBuilder builder_;
  std::vector<Node> nodes_;
};

inline constexpr int kOpsPerRnnStep = 5;

/// A recurrent cell, step by step: one state crosses from each step to the next, and the losses of all steps are added.
inline StepGraph unrolled_rnn(int steps) {
  constexpr Bytes kState = 256_KiB;
  SavingBuilder b(8_MiB);
  const ValueId weight = b.leaf(), tokens = b.leaf();
  ValueId state = b.op("zeros", {tokens}, kState, 0.01), total = b.op("zeros", {tokens}, 4_KiB, 0.01);
  for (int i = 0; i < steps; ++i) {
    const ValueId x = b.op("embedding", {tokens, weight}, kState, 0.1);
    const ValueId mixed = b.op("addmm", {x, state, weight}, kState, 1, {x, state});
    const ValueId next = b.op("tanh", {mixed}, kState, 0.1, {}, true);
    const ValueId loss = b.op("loss", {next}, 4_KiB, 0.3, {next});
    const ValueId sum = b.op("add", {total, loss}, 4_KiB, 0.01);
    b.die({x, mixed, state, loss, total});
    state = next;
    total = sum;
  }
  b.die({state});
  return b.take(total);
}

inline constexpr int kExperts = 16;
inline constexpr int kOpsPerExpertsLayer = 5 + 6 * kExperts;

/// Layers of a mixture of experts: a router, and kExperts gated networks, each of which has a share of the tokens.
inline StepGraph experts(int layers) {
  constexpr Bytes kWidth = 1_MiB, kShare = kWidth / kExperts * 2;
  SavingBuilder b(64_MiB);
  const ValueId weight = b.leaf(), tokens = b.leaf();
  ValueId x = b.op("embedding", {tokens, weight}, kWidth, 0.5);
  for (int i = 0; i < layers; ++i) {
    const ValueId norm = b.op("native_layer_norm", {x}, kWidth, 0.2, {x});
    const ValueId logits = b.op("mm", {norm, weight}, kWidth / 64, 0.2, {norm});
    const ValueId routing = b.op("_softmax", {logits}, kWidth / 64, 0.05, {}, true);
    ValueId out = b.op("zeros_like", {norm}, kWidth, 0.05);
    for (int e = 0; e < kExperts; ++e) {
      const ValueId taken = b.op("index_select", {norm, routing}, kShare, 0.05);
      const ValueId wide = b.op("mm", {taken, weight}, 4 * kShare, 1, {taken});
      const ValueId active = b.op("silu", {wide}, 4 * kShare, 0.1, {wide});
      const ValueId narrow = b.op("mm", {active, weight}, kShare, 1, {active});
      const ValueId scaled = b.op("mul", {narrow, routing}, kShare, 0.05, {narrow, routing});
      const ValueId sum = b.op("index_add", {out, scaled}, kWidth, 0.1);
      b.die({taken, wide, active, narrow, scaled, out});
      out = sum;
    }
    const ValueId next = b.op("add", {x, out}, kWidth, 0.1);
    b.die({norm, logits, routing, out, x});
    x = next;
  }
  const ValueId loss = b.op("loss", {x}, 4_KiB, 0.3, {x});
  b.die({x});
  return b.take(loss);
}

}  // namespace snug::plan::synthetic
