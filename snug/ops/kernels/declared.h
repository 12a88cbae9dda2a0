#pragma once

#include "snug/ops/kernels/table.h"

// What Table has, of one instruction set.
namespace snug::ops::kernels {
inline namespace CPU_CAPABILITY {

void softmax_loss(c10::ScalarType type, const CrossEntropyTerms& terms, const LogitRows& rows, std::int64_t first,
                  std::int64_t last);
void attention_probabilities(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last);
void attention_gradients(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last);
void activated(c10::ScalarType type, Activation f, const Activated& at, std::int64_t first, std::int64_t last);
void differentiated(c10::ScalarType type, Activation f, const Activated& at, const ActivatedGradients& gradients,
                    std::int64_t first, std::int64_t last);
void rms_norm(c10::ScalarType type, const NormalizedRows& rows, std::int64_t first, std::int64_t last);
void rms_norm_gradients(c10::ScalarType type, const NormalizedRows& rows, const NormalizedGradients& gradients,
                        std::int64_t first, std::int64_t last);
void pack_bits(const std::uint8_t* bytes, std::uint8_t* bits, std::int64_t first, std::int64_t last);
void times_bits(c10::ScalarType type, const MaskedNumbers& all, std::int64_t first, std::int64_t last);
void rotate(c10::ScalarType type, const RotatedHeads& heads, std::int64_t first, std::int64_t last);
void rotate_back(c10::ScalarType type, const RotatedHeads& heads, std::int64_t first, std::int64_t last);
void decode(c10::ScalarType type, const PackedNumbers& all, std::int64_t first, std::int64_t last);

}  // namespace CPU_CAPABILITY
}  // namespace snug::ops::kernels
