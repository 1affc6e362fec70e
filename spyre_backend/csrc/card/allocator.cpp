#include "card/allocator.h"

#include "card/error.h"

#include <algorithm>
#include <bit>
#include <string>

namespace spyre::card {

void Gauge::add(std::int64_t amount) {
  current += amount;
  total += amount;
  peak = std::max(peak, current);
}

void Gauge::remove(std::int64_t amount) {
  current -= amount;
  freed += amount;
}

RegionAllocator::RegionAllocator(const Arena& arena, std::uint64_t position, std::uint64_t capacity,
                                 std::uint32_t handles)
    : arena_(arena), base_(position), capacity_(capacity), handles_(handles),
      granule_(round_up((capacity + handles - 1) / handles, kStickBytes)) {
  if (capacity == 0 || capacity % kStickBytes != 0 || handles == 0)
    throw InvalidArgument(
        "a device needs at least one region handle and a capacity that is a positive multiple of " +
        std::to_string(kStickBytes) + " bytes");
  unreserved_.emplace(0, capacity);
}

RegionAllocator::~RegionAllocator() = default;

// Size class of a free block: power of two of its sticks, split in 16.
RegionAllocator::Bin RegionAllocator::bin_of(std::uint64_t length) {
  const std::uint64_t sticks = length / kStickBytes;
  const int log = std::bit_width(sticks) - 1;
  if (log < kSecondBits)
    return {0, static_cast<int>(sticks)};
  const int second = static_cast<int>((sticks >> (log - kSecondBits)) & (kSecondLevels - 1));
  return {log - kSecondBits + 1, second};
}

// Lowest class whose every block is long enough.
RegionAllocator::Bin RegionAllocator::bin_for_request(std::uint64_t length) {
  const std::uint64_t sticks = length / kStickBytes;
  const int log = std::bit_width(sticks) - 1;
  if (log < kSecondBits)
    return bin_of(length);
  const std::uint64_t step = std::uint64_t{1} << (log - kSecondBits);
  return bin_of((sticks + step - 1) / step * step * kStickBytes);
}

Block* RegionAllocator::take_node() {
  if (spare_nodes_ == nullptr) {
    constexpr int kSlab = 256;
    node_slabs_.push_back(std::make_unique<Block[]>(kSlab));
    for (int i = 0; i < kSlab; ++i)
      give_node(&node_slabs_.back()[i]);
  }
  Block* node = spare_nodes_;
  spare_nodes_ = node->next;
  *node = Block{};
  return node;
}

void RegionAllocator::give_node(Block* node) {
  node->live = false;
  node->next = spare_nodes_;
  spare_nodes_ = node;
}

void RegionAllocator::link(Block* block) {
  const auto [first, second] = bin_of(block->length);
  Block*& head = bins_[first][second];
  block->bin_previous = nullptr;
  block->bin_next = head;
  if (head != nullptr)
    head->bin_previous = block;
  head = block;
  second_mask_[first] |= 1u << second;
  first_mask_ |= std::uint64_t{1} << first;
}

void RegionAllocator::unlink(Block* block) {
  if (block->bin_next != nullptr)
    block->bin_next->bin_previous = block->bin_previous;
  if (block->bin_previous != nullptr) {
    block->bin_previous->bin_next = block->bin_next;
    return;
  }
  const auto [first, second] = bin_of(block->length);
  bins_[first][second] = block->bin_next;
  if (block->bin_next != nullptr)
    return;
  second_mask_[first] &= ~(1u << second);
  if (second_mask_[first] == 0)
    first_mask_ &= ~(std::uint64_t{1} << first);
}

Block* RegionAllocator::find_fit(std::uint64_t length) {
  auto [first, second] = bin_for_request(length);
  std::uint32_t seconds = second_mask_[first] & (~std::uint32_t{0} << second);
  if (seconds == 0) {
    const std::uint64_t firsts = first_mask_ & (~std::uint64_t{0} << (first + 1));
    if (firsts == 0) {
      // The request's own class may still hold a block that is long enough: the last resort before a new
      // region.
      const auto own = bin_of(length);
      for (Block* block = bins_[own.first][own.second]; block != nullptr; block = block->bin_next)
        if (block->length >= length)
          return block;
      return nullptr;
    }
    first = std::countr_zero(firsts);
    seconds = second_mask_[first];
  }
  return bins_[first][std::countr_zero(seconds)];
}

Block* RegionAllocator::reserve_region(std::uint64_t length) {
  const std::uint64_t wanted = std::max(length, granule_);
  // The last piece of the address space may be shorter than a granule: it serves requests that fit.
  auto piece = std::find_if(unreserved_.begin(), unreserved_.end(),
                            [&](const auto& entry) { return entry.second >= wanted; });
  if (piece == unreserved_.end())
    piece = std::find_if(unreserved_.begin(), unreserved_.end(),
                         [&](const auto& entry) { return entry.second >= length; });
  if (piece == unreserved_.end())
    return nullptr;
  auto slot =
      std::find_if(regions_.begin(), regions_.end(), [](const Region& region) { return region.length == 0; });
  if (slot == regions_.end()) {
    if (regions_.size() == handles_)
      return nullptr;
    slot = regions_.insert(regions_.end(), Region{});
  }
  const std::uint64_t position = piece->first;
  const std::uint64_t taken = std::min(wanted, piece->second);
  const std::uint64_t rest = piece->second - taken;
  unreserved_.erase(piece);
  if (rest != 0)
    unreserved_.emplace(position + taken, rest);

  Block* block = take_node();
  block->region = static_cast<RegionId>(slot - regions_.begin());
  block->length = taken;
  block->position = base_ + position;
  *slot = Region{position, taken, block};
  link(block);
  stats_.regions.add(1);
  stats_.reserved_bytes.add(static_cast<std::int64_t>(taken));
  return block;
}

Block* RegionAllocator::allocate(std::uint64_t bytes) {
  if (bytes == 0)
    return nullptr;
  const std::lock_guard lock(mutex_);
  const bool possible = bytes <= capacity_;
  const std::uint64_t length = possible ? round_up(bytes, kStickBytes) : bytes;
  Block* block = possible ? find_fit(length) : nullptr;
  if (block == nullptr && possible) {
    block = reserve_region(length);
    if (block == nullptr && release_free_regions_locked() != 0) {
      ++stats_.retries;
      block = reserve_region(length);
    }
  }
  if (block == nullptr) {
    ++stats_.out_of_memory;
    throw OutOfMemory(bytes, capacity_ - static_cast<std::uint64_t>(stats_.allocated_bytes.current),
                      largest_free_locked(), capacity_, static_cast<std::uint32_t>(stats_.regions.current),
                      handles_);
  }
  unlink(block);
  if (block->length > length) {
    Block* rest = take_node();
    rest->region = block->region;
    rest->offset = block->offset + length;
    rest->length = block->length - length;
    rest->position = block->position + length;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr)
      rest->next->previous = rest;
    block->next = rest;
    block->length = length;
    link(rest);
  }
  block->live = true;
  block->requested = bytes;
  live_.emplace(block->position, block);
  stats_.allocations.add(1);
  stats_.allocated_bytes.add(static_cast<std::int64_t>(length));
  stats_.requested_bytes.add(static_cast<std::int64_t>(bytes));
  return block;
}

void RegionAllocator::free(Block* block) {
  if (block == nullptr)
    return;
  const std::lock_guard lock(mutex_);
  if (!block->live)
    throw MemoryFault("a block of device memory was freed twice");
  live_.erase(block->position);
  stats_.allocations.remove(1);
  stats_.allocated_bytes.remove(static_cast<std::int64_t>(block->length));
  stats_.requested_bytes.remove(static_cast<std::int64_t>(block->requested));
  block->live = false;
  block->requested = 0;
  if (Block* next = block->next; next != nullptr && !next->live) {
    unlink(next);
    block->length += next->length;
    block->next = next->next;
    if (block->next != nullptr)
      block->next->previous = block;
    give_node(next);
  }
  if (Block* previous = block->previous; previous != nullptr && !previous->live) {
    unlink(previous);
    previous->length += block->length;
    previous->next = block->next;
    if (previous->next != nullptr)
      previous->next->previous = previous;
    give_node(block);
    block = previous;
  }
  link(block);
}

Block* RegionAllocator::at(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  const auto entry = live_.find(position);
  return entry == live_.end() ? nullptr : entry->second;
}

std::optional<Block> RegionAllocator::find(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  auto entry = live_.upper_bound(position);
  if (entry == live_.begin())
    return std::nullopt;
  const Block* block = std::prev(entry)->second;
  if (position - block->position >= block->length)
    return std::nullopt;
  return *block;
}

void RegionAllocator::check(std::uint64_t position, std::uint64_t bytes) const {
  if (bytes == 0)
    return;
  const auto block = find(position);
  if (!block)
    throw MemoryFault("access of " + std::to_string(bytes) + " bytes at position " +
                      std::to_string(position) + ": no live allocation is there");
  const std::uint64_t within = position - block->position;
  if (bytes > block->length - within)
    throw MemoryFault("access of " + std::to_string(bytes) + " bytes at region " +
                      std::to_string(block->region) + ", offset " + std::to_string(block->offset + within) +
                      " runs past the end of its allocation of " + std::to_string(block->length) +
                      " bytes at offset " + std::to_string(block->offset));
}

std::uint64_t RegionAllocator::release_free_regions() {
  const std::lock_guard lock(mutex_);
  return release_free_regions_locked();
}

std::uint64_t RegionAllocator::release_free_regions_locked() {
  std::uint64_t released = 0;
  for (Region& region : regions_) {
    if (region.length == 0 || region.head->live || region.head->next != nullptr)
      continue;
    unlink(region.head);
    give_node(region.head);
    arena_.discard(base_ + region.position, region.length);
    stats_.regions.remove(1);
    stats_.reserved_bytes.remove(static_cast<std::int64_t>(region.length));
    released += region.length;
    auto [entry, inserted] = unreserved_.emplace(region.position, region.length);
    if (auto next = std::next(entry);
        next != unreserved_.end() && entry->first + entry->second == next->first) {
      entry->second += next->second;
      unreserved_.erase(next);
    }
    if (entry != unreserved_.begin()) {
      auto previous = std::prev(entry);
      if (previous->first + previous->second == entry->first) {
        previous->second += entry->second;
        unreserved_.erase(entry);
      }
    }
    region = Region{};
  }
  return released;
}

std::uint64_t RegionAllocator::largest_free_locked() const {
  std::uint64_t largest = 0;
  for (const auto& classes : bins_)
    for (const Block* head : classes)
      for (const Block* block = head; block != nullptr; block = block->bin_next)
        largest = std::max(largest, block->length);
  for (const auto& [position, length] : unreserved_)
    largest = std::max(largest, length);
  return largest;
}

MemoryStats RegionAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::uint64_t RegionAllocator::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - static_cast<std::uint64_t>(stats_.allocated_bytes.current);
}

void RegionAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge* gauge : {&stats_.allocations, &stats_.allocated_bytes, &stats_.requested_bytes, &stats_.regions,
                       &stats_.reserved_bytes})
    gauge->peak = gauge->current;
}

void RegionAllocator::reset_totals() {
  const std::lock_guard lock(mutex_);
  for (Gauge* gauge : {&stats_.allocations, &stats_.allocated_bytes, &stats_.requested_bytes, &stats_.regions,
                       &stats_.reserved_bytes})
    gauge->total = gauge->freed = 0;
  stats_.retries = 0;
  stats_.out_of_memory = 0;
}

} // namespace spyre::card
