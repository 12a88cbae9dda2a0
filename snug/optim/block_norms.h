#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace snug::optim {

/// Elements of which amounts are added up in a fixed order. Where a tensor is divided at multiples of it, its parts
/// have the same blocks.
inline constexpr std::int64_t kNormBlock = 256;

/// What is added up of an element.
enum class Amount : std::uint8_t { Absolute, Square };

/// Calls `add` with the sum of each block, in fp64, of amounts that are exact in it (but for squares of fp64 itself):
/// the last block may be shorter. In the file whose loops are compiled to the same operations for every machine.
template <class Number>
void add_blocks(std::span<const Number> numbers, Amount amount, const std::function<void(double)>& add);

/// The largest amount; NaN where there is one.
template <class Number>
double largest_amount(std::span<const Number> numbers);

}  // namespace snug::optim
