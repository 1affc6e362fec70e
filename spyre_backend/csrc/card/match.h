// One lambda per alternative of a std::variant.
#pragma once

namespace spyre::card {

// Combines lambdas into one visitor for std::visit.
template <class... Cases> struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases> Match(Cases...) -> Match<Cases...>;

} // namespace spyre::card
