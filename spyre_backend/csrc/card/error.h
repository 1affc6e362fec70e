// Typed failures of the card. Every error that leaves the card is one of these or the exception a callback
// threw itself.
#pragma once

#include <cstdint>
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
  using CardError::CardError;
};

// No free range is long enough. Carries the figures a message or a retry policy needs, in bytes.
class OutOfMemory final : public CardError {
public:
  OutOfMemory(std::uint64_t requested, std::uint64_t available, std::uint64_t largest, std::uint64_t capacity,
              std::uint32_t regions, std::uint32_t handles)
      : CardError("cannot allocate " + std::to_string(requested) + " bytes: " + std::to_string(available) +
                  " of " + std::to_string(capacity) + " bytes are free, the largest free block has " +
                  std::to_string(largest) + " bytes, " + std::to_string(regions) + " of " +
                  std::to_string(handles) + " region handles are in use"),
        requested(requested), available(available), largest(largest) {}

  const std::uint64_t requested;
  const std::uint64_t available;
  const std::uint64_t largest;
};

} // namespace spyre::card
