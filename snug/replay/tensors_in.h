#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace snug::replay {

// Calls visit(at::Tensor&) for every tensor in a value, in the order of their appearance: in optionals, vectors,
// arrays, pairs, tuples, maps, and what these hold. Whatever else there is holds none.

template <class T, class Visit>
void for_each_tensor(T&, const Visit&) {}
template <class Visit>
void for_each_tensor(at::Tensor& value, const Visit& visit);
template <class T, class Visit>
void for_each_tensor(std::optional<T>& value, const Visit& visit);
template <class T, class Visit>
void for_each_tensor(std::vector<T>& value, const Visit& visit);
template <class T, std::size_t N, class Visit>
void for_each_tensor(std::array<T, N>& value, const Visit& visit);
template <class A, class B, class Visit>
void for_each_tensor(std::pair<A, B>& value, const Visit& visit);
template <class... T, class Visit>
void for_each_tensor(std::tuple<T...>& value, const Visit& visit);
template <class K, class T, class Visit>
void for_each_tensor(std::map<K, T>& value, const Visit& visit);
template <class K, class T, class Visit>
void for_each_tensor(std::unordered_map<K, T>& value, const Visit& visit);

template <class Visit>
void for_each_tensor(at::Tensor& value, const Visit& visit) {
  visit(value);
}
template <class T, class Visit>
void for_each_tensor(std::optional<T>& value, const Visit& visit) {
  if (value) for_each_tensor(*value, visit);
}
template <class T, class Visit>
void for_each_tensor(std::vector<T>& value, const Visit& visit) {
  for (auto&& element : value) for_each_tensor(element, visit);
}
template <class T, std::size_t N, class Visit>
void for_each_tensor(std::array<T, N>& value, const Visit& visit) {
  for (T& element : value) for_each_tensor(element, visit);
}
template <class A, class B, class Visit>
void for_each_tensor(std::pair<A, B>& value, const Visit& visit) {
  for_each_tensor(value.first, visit);
  for_each_tensor(value.second, visit);
}
template <class... T, class Visit>
void for_each_tensor(std::tuple<T...>& value, const Visit& visit) {
  std::apply([&](auto&... element) { (for_each_tensor(element, visit), ...); }, value);
}
template <class K, class T, class Visit>
void for_each_tensor(std::map<K, T>& value, const Visit& visit) {
  for (auto& [key, element] : value) for_each_tensor(element, visit);
}
template <class K, class T, class Visit>
void for_each_tensor(std::unordered_map<K, T>& value, const Visit& visit) {
  for (auto& [key, element] : value) for_each_tensor(element, visit);
}

}  // namespace snug::replay
