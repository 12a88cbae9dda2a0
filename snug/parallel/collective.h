#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <variant>

#include "snug/base/bytes.h"

namespace snug::parallel {

/// What becomes of the elements that processes hand in for one place.
enum class Reduce : std::uint8_t { Sum, Max, Min };

// What processes do together. Each of a group begins the same ones in the same order, with tensors of the same types
// and sizes. Tensors are dense and contiguous, and must stay as they are until it is over.

/// Each gets the reduction of all, in place.
struct AllReduce {
  at::Tensor tensor;
  Reduce how = Reduce::Sum;
};
/// Each gets what all have, one behind the other by rank: `all` has as many elements as theirs together.
struct AllGather {
  at::Tensor all, mine;
};
/// Each gets its part of the reduction of all: part `rank` of `all`, which is divided evenly.
struct ReduceScatter {
  at::Tensor mine, all;
  Reduce how = Reduce::Sum;
};
/// Each gets from every process the part of `sent` that has the own rank, one behind the other by the sender's.
struct AllToAll {
  at::Tensor received, sent;
};
/// Each gets what `root` has, in place.
struct Broadcast {
  at::Tensor tensor;
  int root = 0;
};
/// Two processes alone. Those of one pair, with one tag, arrive in the order in which they were sent.
struct Send {
  at::Tensor tensor;
  int to = 0;
  int tag = 0;
};
struct Receive {
  at::Tensor tensor;
  int from = 0;
  int tag = 0;
};
/// None goes on before all are here.
struct Barrier {};

using Collective = std::variant<AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send, Receive, Barrier>;

/// "all-reduce", ...
[[nodiscard]] std::string_view name_of(const Collective& what);
/// Of the tensors that this process hands in; of what it receives where it hands in none.
[[nodiscard]] Bytes bytes_of(const Collective& what);

/// Refuses, as a UsageError, what a group of that size cannot do: tensors that are not dense, of which one lives
/// elsewhere or has another type than the other, sizes that do not divide, ranks that there are not.
void check(const Collective& what, int size);

}  // namespace snug::parallel
