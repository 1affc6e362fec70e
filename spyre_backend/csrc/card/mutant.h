// Faults built in on purpose: a test program compiled with SPYRE_MUTANTS runs with one of them, and the test
// of the promise it breaks must fail. In every other build none exists.
#pragma once

#ifdef SPYRE_MUTANTS
#include <string>
#endif

namespace spyre::card {

#ifdef SPYRE_MUTANTS
inline std::string active_mutant;
#define SPYRE_MUTANT(name) (::spyre::card::active_mutant == #name)
#else
#define SPYRE_MUTANT(name) false
#endif

} // namespace spyre::card
