#pragma once

namespace snug {

/// One function for each type of a std::variant: std::visit(Match{[](const A& a) {...}, [](const B& b) {...}},
/// variant).
template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

}  // namespace snug
