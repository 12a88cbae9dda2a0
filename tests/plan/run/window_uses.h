#pragma once

#include <optional>
#include <vector>

#include "snug/plan/run/window_book.h"

namespace snug::plan::synthetic {

using Order = std::vector<StreamedId>;

inline std::vector<StreamedUse> reads(const Order& order) {
  std::vector<StreamedUse> uses;
  for (const StreamedId tensor : order) uses.push_back({tensor});
  return uses;
}

/// Who makes room.
inline Order leaving(const WindowBook::Place& place) {
  Order all;
  for (const auto& left : place.leave) all.push_back(left.tensor);
  return all;
}

/// One operator uses one tensor. Returns who left for it; nothing where it was inside.
inline std::optional<Order> use(WindowBook& book, StreamedId tensor) {
  std::optional<Order> left;
  if (!book.inside(tensor)) left = leaving(book.bring(tensor).value());
  book.begin_use(tensor);
  book.used(tensor);
  book.end_use(tensor);
  return left;
}

/// So many times tensors came, in steps that use them in this order.
inline int brought_in(WindowBook& book, const Order& order, int steps) {
  int brought = 0;
  for (int i = 0; i < steps; ++i) {
    book.restart();
    for (const StreamedId tensor : order) brought += use(book, tensor) ? 1 : 0;
  }
  return brought;
}

}  // namespace snug::plan::synthetic
