#include "card/memory.h"

#include "card/error.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>

namespace spyre::card {
namespace {

std::byte* reserve(std::uint64_t bytes, int protection) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    throw ShutDown("the host refused " + std::to_string(bytes) +
                   " bytes of address space for the simulated memory (" + std::strerror(errno) +
                   "): lower SPYRE_MEMORY_GB or SPYRE_DEVICES, or raise the address space limit");
  return static_cast<std::byte*>(address);
}

// Bytes from `first` to `address`; very large when the address is before it.
std::uint64_t distance(const void* address, const std::byte* first) {
  return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(first);
}

} // namespace

Arena::Arena(std::uint64_t bytes) : size_(bytes), backing_(reserve(bytes, PROT_READ | PROT_WRITE)) {
  try {
    token_ = reserve(bytes, PROT_NONE);
  } catch (...) {
    munmap(backing_, size_);
    throw;
  }
  // Fewer address translations for large tensors; a host that refuses only makes them slower.
  madvise(backing_, bytes, MADV_HUGEPAGE);
  delta_ = reinterpret_cast<std::intptr_t>(backing_) - reinterpret_cast<std::intptr_t>(token_);
}

Arena::~Arena() {
  munmap(token_, size_);
  munmap(backing_, size_);
}

bool Arena::holds_token(const void* address) const {
  return distance(address, token_) < size_;
}

bool Arena::holds_backing(const void* address) const {
  return distance(address, backing_) < size_;
}

std::uint64_t Arena::position(const void* token) const {
  return distance(token, token_);
}

std::uint64_t Arena::backing_position(const void* address) const {
  return distance(address, backing_);
}

void Arena::discard(std::uint64_t position, std::uint64_t bytes) const {
  madvise(backing_ + position, bytes, MADV_DONTNEED);
}

} // namespace spyre::card
