// Faults built in on purpose: code compiled with SPYRE_MUTANTS runs with the one that the environment
// variable SPYRE_MUTANT names, and the test of the promise it breaks must fail. In every other build none
// exists.
#pragma once

#ifdef SPYRE_MUTANTS
#include <cstdlib>
#include <string_view>
#endif

namespace spyre::card {

#ifdef SPYRE_MUTANTS
inline bool mutant_is_active(std::string_view name) {
  static const char* const active = std::getenv("SPYRE_MUTANT");
  return active != nullptr && name == active;
}
#define SPYRE_MUTANT(name) ::spyre::card::mutant_is_active(#name)
#else
#define SPYRE_MUTANT(name) false
#endif

} // namespace spyre::card
