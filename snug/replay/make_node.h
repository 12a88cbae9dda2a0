#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>

namespace snug::replay {

/// A new node of an autograd graph, as its edges hold it: LibTorch 2.13 went from std::shared_ptr to
/// c10::intrusive_ptr.
template <class Node, class Pointer = decltype(torch::autograd::Edge::function)>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>();
  } else {
    return c10::make_intrusive<Node>();
  }
}

}  // namespace snug::replay
