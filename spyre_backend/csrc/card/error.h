// Typed failures of the card. Every error that leaves the card is one of these or the exception a callback
// threw itself.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace spyre::card {

// Base class: lets a caller tell the card's own failures from those of a callback.
class CardError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

// An access outside of its allocation, or to one that is no longer live.
class MemoryFault final : public CardError {
public:
  using CardError::CardError;
};

// An argument that no state of the card could accept.
class InvalidArgument final : public CardError {
public:
  using CardError::CardError;
};

// The runtime was shut down, or never could start.
class ShutDown final : public CardError {
public:
  using CardError::CardError;
};

// Work that was skipped because something it depended on failed before it.
class Poisoned final : public CardError {
public:
  Poisoned(const std::string& text, std::exception_ptr cause) : CardError(text), cause(std::move(cause)) {}

  // What failed first.
  const std::exception_ptr cause;
};

// Waits that can never end. The text names their streams and events.
class Deadlock final : public CardError {
public:
  using CardError::CardError;
};

// No free range is long enough. The text has the request, what is free, the largest block and the handles in
// use.
class OutOfMemory final : public CardError {
public:
  using CardError::CardError;
};

// The message of an exception of any type.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an error without a message";
  }
}

} // namespace spyre::card
