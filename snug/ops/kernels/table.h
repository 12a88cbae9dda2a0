#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "snug/ops/kernels/activation.h"
#include "snug/ops/kernels/block_format.h"
#include "snug/ops/kernels/cross_entropy_terms.h"

namespace snug::ops::kernels {

/// Rows of logits, one behind the other, of the type that the function is given.
struct LogitRows {
  void* logits;
  const void* bias;  ///< one of that type a column, added first; or null
  std::int64_t columns;
  const std::int64_t* targets;
  std::int64_t ignored;  ///< the target whose rows do not count: their loss and gradients are 0
  double* losses;        ///< of each row
  double times;          ///< the logits become the gradients of so many times their loss; 0: what they become is open
};

/// y = f(x), or f(x) * factor where there is one: numbers one behind the other, of the type that the function is given.
/// Between one operator and the next numbers are rounded to it, as if LibTorch's had been called one after the other.
struct Activated {
  const void* x;
  const void* factor;  ///< or null
  void* y;
};

/// And the way back.
struct ActivatedGradients {
  const void* of_y;
  void* of_x;       ///< may be of_y
  void* of_factor;  ///< null where there is no factor
};

/// Rows of x, which become y = x * w / sqrt(mean of x^2 + epsilon): numbers one behind the other, of the type that the
/// function is given, as LibTorch's operators would compute them one after the other.
struct NormalizedRows {
  const void* x;
  const void* delta;  ///< added first, of delta_type; or null
  c10::ScalarType delta_type;
  void* sum;           ///< what it is added up to, rounded; null where there is no delta
  const void* weight;  ///< one a column: fp32, or fp64 for fp64; or null
  void* y;
  void* inverse_roots;  ///< one a row, of the weight's type
  std::int64_t columns;
  double epsilon;
};

/// And the way back, where x is what was normalized: neither delta nor y is read.
struct NormalizedGradients {
  const void* of_y;
  const void* of_sum;  ///< added to that of x; or null
  void* of_x;
  void* of_weights;  ///< of each row by itself, of the weight's type; or null
};

/// Heads that turn by the angles of their positions, and the way back, which reads y's gradients and writes x's. Rows
/// are those of (batch, positions, heads), widths one behind the other. x is of the type that the function is given; y
/// and the angles are of that one, or of fp32.
struct RotatedHeads {
  const void* x;
  void* of_x;
  void* y;
  c10::ScalarType y_type;
  const void* cosines;  ///< (positions, width)
  const void* sines;
  std::int64_t angles_of_batch;  ///< numbers from one batch's to the next one's
  std::int64_t heads, positions, width;
  std::int64_t x_strides[3], y_strides[3];  ///< of batch, heads, positions
};

/// y = x * kept where a bit is set, and x * 0 elsewhere: numbers one behind the other, of the type that the function is
/// given; the first is that of the lowest bit of the first byte.
struct MaskedNumbers {
  const void* x;
  void* y;
  const std::uint8_t* bits;
  double kept;
  std::int64_t count;
};

/// Blocks as a GGUF file has them, one behind the other, and the numbers that they hold, of the type that the function
/// is given: what ggml's own functions make of them in fp32, rounded to it.
struct PackedNumbers {
  BlockFormat format;
  const std::uint8_t* blocks;  ///< at any address
  void* out;
};

/// Rows of attention's products, (heads, rows, columns) one behind the other, of the type that the function is given.
struct AttentionRows {
  void* scores;     ///< query times key; becomes the probabilities
  void* gradients;  ///< of the probabilities; becomes those of the scores before they were scaled
  void* log_sums;   ///< of exponentials of scaled scores, of each row of each head: fp32, or fp64 for fp64
  std::int64_t log_sums_head, log_sums_row;  ///< numbers from one head and row to the next
  std::int64_t rows, columns;
  std::int64_t first_row;  ///< of a head: column c is not seen by rows before it where `is_causal`
  bool is_causal;
  double scale;
};

/// What is compiled for each instruction set. Types are those of floating-point numbers; a function does rows or
/// numbers [first, last) of what it is given, with the same bits whoever does the others.
struct Table {
  void (*softmax_loss)(c10::ScalarType type, const CrossEntropyTerms& terms, const LogitRows& rows, std::int64_t first,
                       std::int64_t last);
  /// The next two count rows through all heads. This one writes the log_sums; there are no gradients.
  void (*attention_probabilities)(c10::ScalarType type, const AttentionRows& rows, std::int64_t first,
                                  std::int64_t last);
  void (*attention_gradients)(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last);
  /// The next two have GeluTanh and Silu; LibTorch's other one is oneDNN's.
  void (*activated)(c10::ScalarType type, Activation f, const Activated& at, std::int64_t first, std::int64_t last);
  /// Writes y, too.
  void (*differentiated)(c10::ScalarType type, Activation f, const Activated& at, const ActivatedGradients& gradients,
                         std::int64_t first, std::int64_t last);
  void (*rms_norm)(c10::ScalarType type, const NormalizedRows& rows, std::int64_t first, std::int64_t last);
  void (*rms_norm_gradients)(c10::ScalarType type, const NormalizedRows& rows, const NormalizedGradients& gradients,
                             std::int64_t first, std::int64_t last);
  /// The next two count bytes of bits. This one makes them of eight bytes each, which are 0 or 1.
  void (*pack_bits)(const std::uint8_t* bytes, std::uint8_t* bits, std::int64_t first, std::int64_t last);
  void (*times_bits)(c10::ScalarType type, const MaskedNumbers& numbers, std::int64_t first, std::int64_t last);
  void (*rotate)(c10::ScalarType type, const RotatedHeads& heads, std::int64_t first, std::int64_t last);
  void (*rotate_back)(c10::ScalarType type, const RotatedHeads& heads, std::int64_t first, std::int64_t last);
  /// Counts blocks.
  void (*decode)(c10::ScalarType type, const PackedNumbers& all, std::int64_t first, std::int64_t last);
};

}  // namespace snug::ops::kernels
