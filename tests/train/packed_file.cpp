#include "tests/train/packed_file.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/text_file.h"
#include "tests/ops/packed.h"

namespace snug::testing {
namespace {

// As the documentation of the GGUF format numbers them.
constexpr std::uint32_t kVersion = 3, kCount = 4, kNumber = 6, kText = 8, kFp32 = 0, kQ8 = 8;
constexpr std::size_t kAlignment = 32;

template <class Number>
void put(std::string& to, Number number) {
  const std::size_t at = to.size();
  to.resize(at + sizeof(number));
  std::memcpy(to.data() + at, &number, sizeof(number));
}
void put_text(std::string& to, std::string_view text) {
  put<std::uint64_t>(to, text.size());
  to += text;
}
void align(std::string& to) { to.resize((to.size() + kAlignment - 1) / kAlignment * kAlignment); }

class File {
 public:
  template <class Number>
  void say(std::string_view key, std::uint32_t type, Number value) {
    put_text(metadata_, key);
    put(metadata_, type);
    put(metadata_, value);
    ++keys_;
  }
  void say(std::string_view key, std::string_view value) {
    put_text(metadata_, key);
    put(metadata_, kText);
    put_text(metadata_, value);
    ++keys_;
  }
  void add(std::string_view name, std::uint32_t type, std::vector<std::int64_t> shape, const at::Tensor& bytes) {
    put_text(tensors_, name);
    put<std::uint32_t>(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) put<std::uint64_t>(tensors_, *size);
    put(tensors_, type);
    put<std::uint64_t>(tensors_, data_.size());
    data_.append(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    align(data_);
    ++count_;
  }
  void add_matrix(std::string_view name, std::int64_t rows, std::int64_t columns) {
    add(name, kQ8, {rows, columns}, packed_of(torch::randn({rows, columns}) * 0.05).blocks);
  }
  void add_ones(std::string_view name, std::int64_t size) { add(name, kFp32, {size}, torch::ones({size})); }

  [[nodiscard]] std::string text() const {
    std::string all = "GGUF";
    put(all, kVersion);
    put(all, count_);
    put(all, keys_);
    all += metadata_ + tensors_;
    align(all);
    return all + data_;
  }

 private:
  std::uint64_t count_ = 0, keys_ = 0;
  std::string metadata_, tensors_, data_;
};

}  // namespace

void write_packed_llama(const std::filesystem::path& path, const PackedLlama& of) {
  torch::manual_seed(5);
  File file;
  const auto say = [&](const char* key, std::int64_t count) {
    file.say(fmt::format("llama.{}", key), kCount, static_cast<std::uint32_t>(count));
  };
  file.say("general.architecture", "llama");
  say("block_count", of.layers);
  say("embedding_length", of.width);
  say("feed_forward_length", of.inner_width);
  say("attention.head_count", of.heads);
  say("attention.head_count_kv", of.key_heads);
  say("context_length", of.sequence);
  file.say("llama.attention.layer_norm_rms_epsilon", kNumber, 1e-5F);
  const std::int64_t keys = of.width / of.heads * of.key_heads;
  file.add_matrix("token_embd.weight", of.vocabulary, of.width);
  file.add_ones("output_norm.weight", of.width);
  for (std::int64_t i = 0; i < of.layers; ++i) {
    const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      file.add_matrix(fmt::format("blk.{}.{}.weight", i, name), rows, columns);
    };
    file.add_ones(fmt::format("blk.{}.attn_norm.weight", i), of.width);
    file.add_ones(fmt::format("blk.{}.ffn_norm.weight", i), of.width);
    matrix("attn_q", of.width, of.width);
    matrix("attn_k", keys, of.width);
    matrix("attn_v", keys, of.width);
    matrix("attn_output", of.width, of.width);
    matrix("ffn_gate", of.inner_width, of.width);
    matrix("ffn_up", of.inner_width, of.width);
    matrix("ffn_down", of.width, of.inner_width);
  }
  write_text(path, file.text());
}

}  // namespace snug::testing
