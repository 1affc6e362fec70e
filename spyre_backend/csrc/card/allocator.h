// Regions and the blocks inside them: the allocator of one device.
#pragma once

#include "card/memory.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace spyre::card {

// One counter over time. `total` and `freed` only grow; `peak` is the highest `current` since the last reset.
struct Gauge {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t total = 0;
  std::int64_t freed = 0;

  void add(std::int64_t amount);
  void remove(std::int64_t amount);
};

// Statistics of one device, exact at the moment they are read.
struct MemoryStats {
  Gauge allocations;     // live allocations
  Gauge allocated_bytes; // their size, rounded up to sticks
  Gauge requested_bytes; // their size as asked for
  Gauge regions;         // regions in use, each one handle
  Gauge reserved_bytes;  // size of these regions
  std::int64_t retries = 0;
  std::int64_t out_of_memory = 0;
};

// A range of one region: live, or free and ready for reuse. Owned by the allocator; a caller only reads it.
struct Block {
  RegionId region;
  std::uint64_t offset;    // inside the region, bytes
  std::uint64_t length;    // bytes, a multiple of a stick
  std::uint64_t requested; // bytes asked for; 0 while free
  std::uint64_t position;  // inside the arena, bytes
  bool live;
  Block* previous; // neighbours in address order, inside the region
  Block* next;
  Block* bin_previous; // free list of its size class, while free
  Block* bin_next;
};

// Allocates blocks of one device's memory.
//
// A region is reserved from the device's address space when no free block fits, and returned by
// release_free_regions(). Regions have at least capacity / handles bytes, so the number of regions can never
// exceed the number of handles, in PF and in VF mode alike, and both modes hand out the same offsets. Inside
// its regions the allocator keeps free blocks in size classes and takes the first block of the lowest class
// whose every member fits; neighbours merge at once. Thread-safe; takes no other lock.
class RegionAllocator {
public:
  // Manages [position, position + capacity) of `arena` with at most `handles` regions.
  RegionAllocator(const Arena& arena, std::uint64_t position, std::uint64_t capacity, std::uint32_t handles);
  ~RegionAllocator();
  RegionAllocator(const RegionAllocator&) = delete;
  RegionAllocator& operator=(const RegionAllocator&) = delete;

  // A live block of at least `bytes`; null for 0. Throws OutOfMemory and then leaves the allocator as it was,
  // apart from the count of failures. Free regions are returned and the search repeated once before it gives
  // up.
  Block* allocate(std::uint64_t bytes);
  // Ends the life of a block that allocate() returned. Throws MemoryFault for one that is not live.
  void free(Block* block);

  // The live block that starts at `position` of the arena; null if none does.
  Block* at(std::uint64_t position) const;
  // The live block that holds `position` of the arena, as a copy; none if the position is free.
  std::optional<Block> find(std::uint64_t position) const;
  // Throws MemoryFault unless [position, position + bytes) lies inside one live block.
  void check(std::uint64_t position, std::uint64_t bytes) const;

  // Returns wholly free regions and their handles; their pages go back to the host. Returns the number of
  // bytes.
  std::uint64_t release_free_regions();

  MemoryStats stats() const;
  void reset_peaks();
  void reset_totals();

  std::uint64_t capacity() const { return capacity_; }
  // Bytes that are not part of a live block, whether in a region or not yet reserved.
  std::uint64_t free_bytes() const;

private:
  static constexpr int kFirstLevels = 40;
  static constexpr int kSecondBits = 4;
  static constexpr int kSecondLevels = 1 << kSecondBits;

  struct Bin {
    int first;
    int second;
  };
  struct Region {
    std::uint64_t position; // inside the device's range
    std::uint64_t length;
    Block* head;
  };

  static Bin bin_of(std::uint64_t length);
  static Bin bin_for_request(std::uint64_t length);

  Block* take_node();
  void give_node(Block* node);
  void link(Block* block);
  void unlink(Block* block);
  Block* find_fit(std::uint64_t length);
  Block* reserve_region(std::uint64_t length);
  std::uint64_t release_free_regions_locked();
  std::uint64_t largest_free_locked() const;

  const Arena& arena_;
  const std::uint64_t base_;
  const std::uint64_t capacity_;
  const std::uint32_t handles_;
  const std::uint64_t granule_;

  mutable std::mutex mutex_;
  std::vector<Region> regions_;                       // index = RegionId; length 0 when the handle is free
  std::map<std::uint64_t, std::uint64_t> unreserved_; // position -> length inside the device's range
  std::map<std::uint64_t, Block*> live_;              // arena position -> block: the interval map
  std::uint64_t first_mask_ = 0;
  std::array<std::uint32_t, kFirstLevels> second_mask_{};
  std::array<std::array<Block*, kSecondLevels>, kFirstLevels> bins_{};
  std::vector<std::unique_ptr<Block[]>> node_slabs_;
  Block* spare_nodes_ = nullptr;
  MemoryStats stats_;
};

} // namespace spyre::card
