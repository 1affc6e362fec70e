// Where device memory is: chunks inside regions, and the host mapping that stands in for the card's LPDDR5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spyre::card {

// Transfers and allocations are multiples of one stick.
inline constexpr std::uint64_t kStickBytes = 128;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

using RegionId = std::uint32_t;

// A contiguous piece of one region; offset and length in bytes, both multiples of a stick.
struct Chunk {
  RegionId region;
  std::uint64_t offset;
  std::uint64_t length;

  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// The simulated LPDDR5 of all devices: two address ranges of the same size.
//
// `backing` holds the bytes. `token` is reserved and inaccessible: what a tensor shows as its address lies
// there, so address arithmetic works and a stray host access faults. backing - token is constant for the life
// of the process.
class Arena {
public:
  // Reserves `bytes` twice; pages are committed on first touch. Throws ShutDown when the address space is
  // refused.
  explicit Arena(std::uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::uint64_t size() const { return size_; }
  std::byte* token(std::uint64_t position) const { return token_ + position; }
  std::byte* backing(std::uint64_t position) const { return backing_ + position; }
  std::ptrdiff_t delta() const { return delta_; }

  bool holds_token(const void* address) const;
  bool holds_backing(const void* address) const;
  // Position of a token inside the arena; only for addresses for which holds_token is true.
  std::uint64_t position(const void* token) const;
  // The same for a backing address.
  std::uint64_t backing_position(const void* address) const;
  // Gives the pages of [position, position + bytes) back to the host.
  void discard(std::uint64_t position, std::uint64_t bytes) const;

private:
  std::uint64_t size_;
  std::byte* backing_;
  std::byte* token_;
  std::ptrdiff_t delta_;
};

} // namespace spyre::card
