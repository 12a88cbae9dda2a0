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

}  // namespace CPU_CAPABILITY
}  // namespace snug::ops::kernels
