// The layers and losses of torch::nn, operators with running statistics, and custom autograd functions.
#include <array>
#include <functional>
#include <vector>

#include "snug/ops/activated_linear.h"
#include "snug/ops/dropout.h"
#include "tests/programs/layers.h"
#include "tests/programs/state.h"

namespace snug::programs {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// A module that takes one tensor of a fixed shape.
struct Layer {
  std::function<std::shared_ptr<nn::Module>()> make;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor(nn::Module&, const at::Tensor&)> call;
};

template <class Impl, class... Options>
Layer layer(std::vector<std::int64_t> shape, Options... options) {
  return {[=] { return std::make_shared<Impl>(options...); }, std::move(shape),
          [](nn::Module& m, const at::Tensor& x) { return dynamic_cast<Impl&>(m).forward(x); }};
}

template <class Impl, class Options>
Layer recurrent(Options options) {
  return {[=] { return std::make_shared<Impl>(options); },
          {3, 2, 4},
          [](nn::Module& m, const at::Tensor& x) { return std::get<0>(dynamic_cast<Impl&>(m).forward(x)); }};
}

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {
      layer<nn::LinearImpl>({3, 4}, nn::LinearOptions(4, 5)),
      layer<nn::Conv1dImpl>({2, 3, 6}, nn::Conv1dOptions(3, 4, 3).padding(1)),
      layer<nn::Conv2dImpl>({1, 2, 5, 5}, nn::Conv2dOptions(2, 3, 3).stride(2)),
      layer<nn::Conv3dImpl>({1, 1, 3, 3, 3}, nn::Conv3dOptions(1, 2, 2)),
      layer<nn::ConvTranspose1dImpl>({1, 2, 4}, nn::ConvTranspose1dOptions(2, 3, 2)),
      layer<nn::ConvTranspose2dImpl>({1, 2, 3, 3}, nn::ConvTranspose2dOptions(2, 2, 2).stride(2)),
      layer<nn::BatchNorm1dImpl>({4, 3}, nn::BatchNorm1dOptions(3)),
      layer<nn::BatchNorm2dImpl>({2, 3, 2, 2}, nn::BatchNorm2dOptions(3)),
      layer<nn::BatchNorm3dImpl>({2, 2, 1, 2, 2}, nn::BatchNorm3dOptions(2)),
      layer<nn::InstanceNorm1dImpl>({2, 3, 4}, nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true)),
      layer<nn::LayerNormImpl>({3, 4}, nn::LayerNormOptions({4})),
      layer<nn::GroupNormImpl>({2, 4, 3}, nn::GroupNormOptions(2, 4)),
      layer<nn::LocalResponseNormImpl>({1, 4, 3, 3}, nn::LocalResponseNormOptions(2)),
      layer<nn::MaxPool1dImpl>({1, 2, 6}, nn::MaxPool1dOptions(2)),
      layer<nn::MaxPool2dImpl>({1, 2, 4, 4}, nn::MaxPool2dOptions(2)),
      layer<nn::AvgPool1dImpl>({1, 2, 6}, nn::AvgPool1dOptions(2)),
      layer<nn::AvgPool2dImpl>({1, 2, 4, 4}, nn::AvgPool2dOptions(2)),
      layer<nn::AdaptiveAvgPool2dImpl>({1, 2, 5, 5}, nn::AdaptiveAvgPool2dOptions(2)),
      layer<nn::AdaptiveMaxPool1dImpl>({1, 2, 5}, nn::AdaptiveMaxPool1dOptions(2)),
      layer<nn::LPPool1dImpl>({1, 2, 6}, nn::LPPool1dOptions(2, 2)),
      layer<nn::FractionalMaxPool2dImpl>({1, 2, 5, 5}, nn::FractionalMaxPool2dOptions(2).output_size(2)),
      layer<nn::DropoutImpl>({3, 4}, nn::DropoutOptions(0.3)),
      layer<nn::AlphaDropoutImpl>({3, 4}, nn::AlphaDropoutOptions(0.3)),
      layer<nn::FeatureAlphaDropoutImpl>({2, 3, 2}, nn::FeatureAlphaDropoutOptions(0.3)),
      layer<nn::PReLUImpl>({3, 4}, nn::PReLUOptions()),
      layer<nn::GLUImpl>({3, 4}, nn::GLUOptions()),
      layer<nn::SELUImpl>({3, 4}, nn::SELUOptions()),
      layer<nn::CELUImpl>({3, 4}, nn::CELUOptions()),
      layer<nn::HardshrinkImpl>({3, 4}, nn::HardshrinkOptions()),
      layer<nn::SoftshrinkImpl>({3, 4}, nn::SoftshrinkOptions()),
      layer<nn::TanhshrinkImpl>({3, 4}),
      layer<nn::LogSigmoidImpl>({3, 4}),
      layer<nn::SoftsignImpl>({3, 4}),
      layer<nn::ReLU6Impl>({3, 4}, nn::ReLU6Options()),
      layer<nn::RReLUImpl>({3, 4}, nn::RReLUOptions()),
      layer<nn::ThresholdImpl>({3, 4}, nn::ThresholdOptions(0.1, 0.2)),
      layer<nn::SoftminImpl>({3, 4}, nn::SoftminOptions(1)),
      layer<nn::Softmax2dImpl>({1, 2, 2, 2}),
      layer<nn::ReflectionPad2dImpl>({1, 1, 3, 3}, nn::ReflectionPad2dOptions(1)),
      layer<nn::ReplicationPad1dImpl>({1, 2, 3}, nn::ReplicationPad1dOptions(1)),
      layer<nn::ZeroPad2dImpl>({1, 1, 2, 2}, nn::ZeroPad2dOptions(1)),
      layer<nn::PixelShuffleImpl>({1, 4, 2, 2}, nn::PixelShuffleOptions(2)),
      layer<nn::FoldImpl>({1, 4, 4}, nn::FoldOptions({3, 3}, {2, 2})),
      layer<nn::UnfoldImpl>({1, 1, 3, 3}, nn::UnfoldOptions({2, 2})),
      layer<nn::UpsampleImpl>(
          {1, 1, 3, 3},
          nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kBilinear).align_corners(false)),
      layer<nn::UpsampleImpl>({1, 1, 3, 3}, nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2})),
      layer<nn::FlattenImpl>({2, 3, 2}, nn::FlattenOptions()),
      recurrent<nn::LSTMImpl>(nn::LSTMOptions(4, 3).num_layers(2).dropout(0.2)),
      recurrent<nn::GRUImpl>(nn::GRUOptions(4, 3).bidirectional(true)),
      recurrent<nn::RNNImpl>(nn::RNNOptions(4, 3)),
      {[] {
         return std::make_shared<nn::TransformerEncoderLayerImpl>(
             nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0.1));
       },
       {3, 2, 4},
       [](nn::Module& m, const at::Tensor& x) { return dynamic_cast<nn::TransformerEncoderLayerImpl&>(m).forward(x); }},
      {[] { return std::make_shared<nn::MultiheadAttentionImpl>(nn::MultiheadAttentionOptions(4, 2).dropout(0.1)); },
       {3, 2, 4},
       [](nn::Module& m, const at::Tensor& x) {
         return std::get<0>(dynamic_cast<nn::MultiheadAttentionImpl&>(m).forward(x, x, x));
       }},
      {[] { return std::make_shared<nn::DropoutImpl>(); },
       {3, 4},
       [](nn::Module&, const at::Tensor& x) { return ops::dropout(x, 0.3); }},
      {[] { return std::make_shared<nn::LinearImpl>(nn::LinearOptions(4, 5)); },
       {3, 4},
       [](nn::Module& m, const at::Tensor& x) {
         const auto& linear = dynamic_cast<nn::LinearImpl&>(m);
         return ops::activated_linear({.x = x}, linear.weight, linear.bias);
       }},
      {[] { return std::make_shared<nn::BilinearImpl>(nn::BilinearOptions(2, 2, 3)); },
       {3, 2},
       [](nn::Module& m, const at::Tensor& x) { return dynamic_cast<nn::BilinearImpl&>(m).forward(x, x.sin()); }},
      {[] { return std::make_shared<nn::EmbeddingImpl>(nn::EmbeddingOptions(6, 4)); },
       {3},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::EmbeddingImpl&>(m).forward(x.detach().abs().clamp_max(5).to(at::kLong)) * x.mean();
       }},
      {[] { return std::make_shared<nn::EmbeddingBagImpl>(nn::EmbeddingBagOptions(6, 4)); },
       {2, 3},
       [](nn::Module& m, const at::Tensor& x) {
         return dynamic_cast<nn::EmbeddingBagImpl&>(m).forward(x.detach().abs().clamp_max(5).to(at::kLong)) * x.mean();
       }},
      {[] { return std::make_shared<nn::GRUCellImpl>(nn::GRUCellOptions(4, 3)); },
       {2, 4},
       [](nn::Module& m, const at::Tensor& x) { return dynamic_cast<nn::GRUCellImpl&>(m).forward(x); }},
      {[] { return std::make_shared<nn::LSTMCellImpl>(nn::LSTMCellOptions(4, 3)); },
       {2, 4},
       [](nn::Module& m, const at::Tensor& x) { return std::get<1>(dynamic_cast<nn::LSTMCellImpl&>(m).forward(x)); }},
  };
  return all;
}

void module_layer(State& s, const Instruction& i) {
  const std::size_t k = (i.variant + 16U * i.second) % layers().size();
  const Layer& chosen = layers()[k];
  if (s.may_run_twice && !s.modules->at(k)->buffers().empty()) return;
  s.at = testing::test_device();
  s.push(chosen.call(*s.modules->at(k), fitted_float(s.pick(i.first), chosen.shape)));
}

void loss(State& s, const Instruction& i) {
  const at::Tensor x = fitted_float(s.pick(i.first), {3, 4}), y = fitted_float(s.pick(i.second), {3, 4}).sigmoid();
  const at::Tensor classes = at::arange(3, at::kLong) * (i.second + 1) % 4;
  const at::Tensor signs = at::where(y.detach() > 0.5, 1, -1).to(at::kFloat);
  switch (i.variant % 17) {
    case 0:
      return s.push(F::cross_entropy(x, classes));
    case 1:
      return s.push(F::nll_loss(x.log_softmax(1), classes));
    case 2:
      return s.push(F::mse_loss(x, y));
    case 3:
      return s.push(F::l1_loss(x, y));
    case 4:
      return s.push(F::smooth_l1_loss(x, y));
    case 5:
      return s.push(F::huber_loss(x, y));
    case 6:
      return s.push(F::kl_div(x.log_softmax(1), y, F::KLDivFuncOptions().reduction(torch::kBatchMean)));
    case 7:
      return s.push(F::binary_cross_entropy(x.sigmoid(), y.detach()));
    case 8:
      return s.push(F::binary_cross_entropy_with_logits(x, y));
    case 9:
      return s.push(F::soft_margin_loss(x, signs));
    case 10:
      return s.push(F::hinge_embedding_loss(x, signs));
    case 11:
      return s.push(F::multi_margin_loss(x, classes));
    case 12:
      return s.push(F::margin_ranking_loss(x, y, signs));
    case 13:
      return s.push(F::cosine_embedding_loss(x, y, signs.select(1, 0)));
    case 14:
      return s.push(F::triplet_margin_loss(x, y, y.flip({1})));
    case 15:
      return s.push(F::poisson_nll_loss(x.tanh(), y));
    default:
      return s.push(F::ctc_loss(fitted_float(x, {5, 1, 4}).log_softmax(2), torch::arange(1, 3).unsqueeze(0),
                                torch::full({1}, 5), torch::full({1}, 2)));
  }
}

void attention(State& s, const Instruction& i) {
  const at::Tensor q = fitted_float(s.pick(i.first), {1, 2, 3, 4}), k = fitted_float(s.pick(i.second), {1, 2, 3, 4});
  switch (i.variant % 4) {
    case 0:
      return s.push(at::scaled_dot_product_attention(q, k, k));
    case 1:
      return s.push(at::scaled_dot_product_attention(q, k, k.sin(), {}, 0.0, /*is_causal=*/true));
    case 2:
      return s.push(at::scaled_dot_product_attention(q, k, k, {}, 0.2));
    default:
      return s.push(at::scaled_dot_product_attention(
          q, k, k, at::zeros({3, 3}).masked_fill_(at::ones({3, 3}).triu(1).to(at::kBool), -1.0)));
  }
}

/// sin(x) * y, with both inputs and a result saved, and a number in saved_data.
struct SinTimes : torch::autograd::Function<SinTimes> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& y,
                            double scale) {
    const at::Tensor sine = x.sin();
    context->save_for_backward({x, y, sine});
    context->saved_data["scale"] = scale;
    return sine * y * scale;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const double scale = context->saved_data["scale"].toDouble();
    return {gradients[0] * saved[0].cos() * saved[1] * scale, gradients[0] * saved[2] * scale, at::Tensor()};
  }
};

/// Squares with a loop of its own, outside of ATen: what it fills is opaque to a recorder.
struct RawSquare : torch::autograd::Function<RawSquare> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor in = x.contiguous().to(at::kFloat);
    at::Tensor out = at::empty(in.sizes(), in.options());
    const float* from = in.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    for (std::int64_t k = 0; k < in.numel(); ++k) to[k] = from[k] * from[k];
    context->save_for_backward({x, out});
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * 2 * saved[0] + 0 * saved[1]};
  }
};

void custom_function(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  if (i.variant % 2 == 0)
    return s.push(SinTimes::apply(x, fitted(s.pick(i.second).to(x.scalar_type()), x.sizes()), 0.5));
  s.push(RawSquare::apply(x.tanh().to(at::kFloat)));
}

constexpr std::array<Kind, 5> kLayers{{{"layer", &module_layer},
                                       {"another layer", &module_layer},
                                       {"loss", &loss},
                                       {"attention", &attention},
                                       {"custom function", &custom_function}}};

}  // namespace

std::vector<std::shared_ptr<torch::nn::Module>> make_layers() {
  std::vector<std::shared_ptr<nn::Module>> made;
  for (const Layer& l : layers()) made.push_back(l.make());
  return made;
}

at::Tensor call_every_layer(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  at::Tensor sum = torch::zeros({});
  for (std::size_t k = 0; k < modules.size(); ++k) {
    const Layer& l = layers()[k];
    sum = sum + l.call(*modules[k], torch::rand(l.shape, at::requires_grad())).sum();
  }
  return sum;
}

std::span<const Kind> layer_kinds() { return kLayers; }

}  // namespace snug::programs
