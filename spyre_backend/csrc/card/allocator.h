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

// Who has the card. PF: one tenant owns it, and its table of region handles has room for whatever the address
// space allows. VF: tenants share it, and each has a small table. Both hand out the same offsets for the same
// requests; only the allocator reads the mode.
enum class Mode : std::uint8_t { PF, VF };

// What memory is for. Programs and tensors never share a region.
enum class Use : std::uint8_t { Tensor, Program };

struct MemoryOptions {
  Mode mode = Mode::PF;
  std::uint32_t handles = 16; // of one VF tenant; also sets the least size of a region in both modes
  std::uint32_t domains = 1;  // equal parts of the card's memory; a region lies in one
};

// Where an allocation goes: explicit and binding, never somewhere else because that is fuller.
//
// Bind: one domain and granule 0. Interleave: piece after piece of `granule` bytes, a multiple of a stick, to
// the domains in turn. Without domains: bound to the domain that has the most free memory.
struct Placement {
  std::vector<std::uint32_t> domains = {};
  std::uint64_t granule = 0;

  friend bool operator==(const Placement&, const Placement&) = default;
};

// What an allocation is: its pieces in order, and the placement that made them.
struct Description {
  std::vector<Chunk> chunks;
  Placement placement;
};

// Statistics of one device, exact at the moment they are read.
struct MemoryStats {
  Gauge allocations;     // live allocations for tensors
  Gauge allocated_bytes; // their size, rounded up to sticks
  Gauge requested_bytes; // their size as asked for
  Gauge program_bytes;   // size of live allocations for programs, rounded up to sticks
  Gauge regions;         // regions in use, each one handle
  Gauge reserved_bytes;  // size of these regions
  std::int64_t retries = 0;
  std::int64_t out_of_memory = 0;
};

// Stands in a block for an interleaved allocation, which has chunks in many regions.
inline constexpr RegionId kManyRegions = ~RegionId{0};

// A range of one region: live, or free and ready for reuse. Owned by the allocator; a caller only reads it.
//
// An interleaved allocation is one block too: its bytes are seen through a window of the arena, in which they
// are contiguous, and its chunks are accounted for in the regions they belong to.
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

// One region in use.
struct RegionInfo {
  RegionId id;
  Use use;
  std::uint32_t domain;
  std::uint64_t position; // inside the arena
  std::uint64_t length;
  std::uint64_t free;         // bytes that are not part of a live block
  std::uint64_t largest_free; // bytes
};

// Allocates blocks of one device's memory.
//
// A region is reserved from the device's address space when no free block fits, and returned by
// release_free_regions(). Regions have at least capacity / handles bytes where the address space allows, so
// that thousands of tensors need few handles; running out of them is running out of memory. Inside its
// regions the allocator keeps free blocks in size classes and takes the first block of the lowest class whose
// every member fits; neighbours merge at once. Thread-safe; takes no other lock.
class RegionAllocator {
public:
  // Bytes of the arena that a device of this capacity takes: its memory, then as much room for windows.
  static constexpr std::uint64_t footprint(std::uint64_t capacity) { return 2 * capacity; }

  // Manages [position, position + footprint(capacity)) of `arena`.
  RegionAllocator(const Arena& arena, std::uint64_t position, std::uint64_t capacity,
                  const MemoryOptions& options);
  ~RegionAllocator();
  RegionAllocator(const RegionAllocator&) = delete;
  RegionAllocator& operator=(const RegionAllocator&) = delete;

  // A live block of at least `bytes`; null for 0. Throws OutOfMemory and then leaves the allocator as it was,
  // apart from the count of failures. Free regions are returned and the search repeated once before it gives
  // up.
  // Throws InvalidArgument for a placement that this device can't keep.
  Block* allocate(std::uint64_t bytes, Use use = Use::Tensor, const Placement& placement = {});
  // As allocate(), but null when there is no room, which does not count as a failure: for callers that can
  // make room and try again.
  Block* try_allocate(std::uint64_t bytes, Use use = Use::Tensor, const Placement& placement = {});
  // Ends the life of a block that allocate() returned. Throws MemoryFault for one that is not live.
  void free(Block* block);

  // The live block that starts at `position` of the arena; null if none does.
  Block* at(std::uint64_t position) const;
  // The live block that holds `position` of the arena, as a copy; none if the position is free.
  std::optional<Block> find(std::uint64_t position) const;
  // What the memory of [position, position + bytes) is for. Throws MemoryFault unless it lies inside one live
  // block; no bytes are always right, and Tensor.
  Use check(std::uint64_t position, std::uint64_t bytes) const;

  // The allocation that holds `position` of the arena; no chunks if none does.
  Description describe(std::uint64_t position) const;
  // The regions in use, by id.
  std::vector<RegionInfo> regions() const;

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
    Use use;
    std::uint32_t domain;
  };
  // An interleaved allocation: its pieces, in order.
  struct Interleaved {
    std::vector<Block*> pieces;
    Placement placement;
    Use use;
  };
  // Free blocks of all regions of one use in one domain, by size class.
  struct Pool {
    std::uint64_t first_mask = 0;
    std::array<std::uint32_t, kFirstLevels> second_mask{};
    std::array<std::array<Block*, kSecondLevels>, kFirstLevels> bins{};
  };

  // Free address ranges: position -> length.
  using AddressRanges = std::map<std::uint64_t, std::uint64_t>;
  static void take_range(AddressRanges& ranges, AddressRanges::iterator range, std::uint64_t length);
  static void give_range(AddressRanges& ranges, std::uint64_t position, std::uint64_t length);

  static Bin bin_of(std::uint64_t length);
  static Bin bin_for_request(std::uint64_t length);

  Block* take_node();
  void give_node(Block* node);
  void link(Block* block);
  void unlink(Block* block);
  Pool& pool(Use use, std::uint32_t domain) {
    return pools_[static_cast<std::size_t>(use) * options_.domains + domain];
  }
  Pool& pool_of(const Block& block) {
    return pool(regions_[block.region].use, regions_[block.region].domain);
  }
  // The live block that holds a position of the arena; null if none does.
  const Block* holder_of(std::uint64_t position) const;
  Use use_of(const Block& block) const;
  std::uint64_t free_bytes_locked() const;
  void check_placement(const Placement& placement) const;
  std::uint32_t emptiest_domain() const;
  static Block* find_fit(const Pool& pool, std::uint64_t length);
  Block* reserve_region(std::uint64_t length, Use use, std::uint32_t domain);
  std::uint64_t release_free_regions_locked();
  std::vector<RegionInfo> regions_locked() const;
  // A live range of one region, without statistics, and its end.
  Block* carve(std::uint64_t length, Use use, std::uint32_t domain);
  void give_back(Block* block);
  Block* interleave(std::uint64_t length, Use use, const Placement& placement);
  Block* allocate_locked(std::uint64_t bytes, Use use, const Placement& placement);
  [[noreturn]] void refuse(std::uint64_t bytes);

  const Arena& arena_;
  const std::uint64_t base_;
  const std::uint64_t capacity_;
  const MemoryOptions options_;
  const std::uint64_t granule_;

  mutable std::mutex mutex_;
  std::vector<Region> regions_;           // index = RegionId; length 0 when the handle is free
  std::vector<AddressRanges> unreserved_; // by domain, inside the device's range
  AddressRanges windows_;                 // room for windows, inside the arena
  std::map<std::uint64_t, Block*> live_;  // arena position -> allocation: the interval map
  std::map<const Block*, Interleaved> interleaved_;
  std::vector<Pool> pools_;                  // by use, then domain
  std::vector<std::uint64_t> domain_in_use_; // bytes of live ranges
  std::vector<std::unique_ptr<Block[]>> node_slabs_;
  Block* spare_nodes_ = nullptr;
  MemoryStats stats_;
};

} // namespace spyre::card
