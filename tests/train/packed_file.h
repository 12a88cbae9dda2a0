#pragma once

#include <cstdint>
#include <filesystem>

namespace snug::testing {

struct PackedLlama {
  std::int64_t layers = 2, width = 256, inner_width = 512, heads = 4, key_heads = 2, vocabulary = 512, sequence = 128;
};

/// A GGUF file of a Llama with those sizes: matrices of blocks of 8 bits, random ones, and no tokenizer.
void write_packed_llama(const std::filesystem::path& path, const PackedLlama& of = {});

}  // namespace snug::testing
