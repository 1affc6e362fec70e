// The card's errors as Python sees them.
#pragma once

#include "card/error.h"

#include <exception>

namespace spyre::bridge {

// Throws the Python exception type of a card error: torch.spyre.MemoryFault and so on, torch.OutOfMemoryError
// for memory. Both are RuntimeErrors. In a process without the Python module, throws a c10::Error.
[[noreturn]] void throw_translated(const card::CardError& error);

// Runs `call`; an error of the card that leaves it is translated. Others pass as they are, so that what a
// host callback threw keeps its type and its text.
template <class Call> decltype(auto) translated(Call&& call) {
  try {
    return call();
  } catch (const card::CardError& error) {
    throw_translated(error);
  }
}

} // namespace spyre::bridge
