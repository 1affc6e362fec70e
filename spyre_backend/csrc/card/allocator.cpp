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
                                 const MemoryOptions& options)
    : arena_(arena), base_(position), capacity_(capacity), options_(options),
      granule_(round_up(capacity / std::max(1u, options.handles), kStickBytes)) {
  if (options.handles == 0 || options.domains == 0 || capacity == 0 ||
      capacity % (kStickBytes * options.domains) != 0)
    throw InvalidArgument(
        "a device needs at least one region handle, at least one memory domain and a capacity that is "
        "a positive multiple of " +
        std::to_string(kStickBytes) + " bytes in each domain");
  const std::uint64_t part = capacity / options.domains;
  for (std::uint64_t domain = 0; domain < options.domains; ++domain)
    unreserved_.push_back({{domain * part, part}});
  windows_ = {{position + capacity, capacity}};
  pools_.resize(std::size_t{2} * options.domains);
  domain_in_use_.resize(options.domains, 0);
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
  Pool& pool = pool_of(*block);
  Block*& head = pool.bins[first][second];
  block->bin_previous = nullptr;
  block->bin_next = head;
  if (head != nullptr)
    head->bin_previous = block;
  head = block;
  pool.second_mask[first] |= 1u << second;
  pool.first_mask |= std::uint64_t{1} << first;
}

void RegionAllocator::unlink(Block* block) {
  if (block->bin_next != nullptr)
    block->bin_next->bin_previous = block->bin_previous;
  if (block->bin_previous != nullptr) {
    block->bin_previous->bin_next = block->bin_next;
    return;
  }
  const auto [first, second] = bin_of(block->length);
  Pool& pool = pool_of(*block);
  pool.bins[first][second] = block->bin_next;
  if (block->bin_next != nullptr)
    return;
  pool.second_mask[first] &= ~(1u << second);
  if (pool.second_mask[first] == 0)
    pool.first_mask &= ~(std::uint64_t{1} << first);
}

Block* RegionAllocator::find_fit(const Pool& pool, std::uint64_t length) {
  auto [first, second] = bin_for_request(length);
  std::uint32_t seconds = pool.second_mask[first] & (~std::uint32_t{0} << second);
  if (seconds == 0) {
    const std::uint64_t firsts = pool.first_mask & (~std::uint64_t{0} << (first + 1));
    if (firsts == 0) {
      // The request's own class may still hold a block that is long enough: the last resort before a new
      // region.
      const auto own = bin_of(length);
      for (Block* block = pool.bins[own.first][own.second]; block != nullptr; block = block->bin_next)
        if (block->length >= length)
          return block;
      return nullptr;
    }
    first = std::countr_zero(firsts);
    seconds = pool.second_mask[first];
  }
  return pool.bins[first][std::countr_zero(seconds)];
}

void RegionAllocator::take_range(AddressRanges& ranges, AddressRanges::iterator range, std::uint64_t length) {
  const auto [position, whole] = *range;
  ranges.erase(range);
  if (whole != length)
    ranges.emplace(position + length, whole - length);
}

void RegionAllocator::give_range(AddressRanges& ranges, std::uint64_t position, std::uint64_t length) {
  auto [entry, inserted] = ranges.emplace(position, length);
  if (auto next = std::next(entry); next != ranges.end() && entry->first + entry->second == next->first) {
    entry->second += next->second;
    ranges.erase(next);
  }
  if (entry == ranges.begin())
    return;
  auto previous = std::prev(entry);
  if (previous->first + previous->second == entry->first) {
    previous->second += entry->second;
    ranges.erase(entry);
  }
}

Block* RegionAllocator::reserve_region(std::uint64_t length, Use use, std::uint32_t domain) {
  AddressRanges& ranges = unreserved_[domain];
  const std::uint64_t wanted = std::max(length, granule_);
  const auto first_of = [&](std::uint64_t least) {
    return std::find_if(ranges.begin(), ranges.end(),
                        [&](const auto& entry) { return entry.second >= least; });
  };
  // The last piece of the address space may be shorter than a granule: it serves requests that fit.
  auto piece = first_of(wanted);
  if (piece == ranges.end())
    piece = first_of(length);
  if (piece == ranges.end())
    return nullptr;
  auto slot =
      std::find_if(regions_.begin(), regions_.end(), [](const Region& region) { return region.length == 0; });
  if (slot == regions_.end()) {
    if (options_.mode == Mode::VF && regions_.size() == options_.handles)
      return nullptr;
    slot = regions_.insert(regions_.end(), Region{});
  }
  const std::uint64_t position = piece->first;
  const std::uint64_t taken = std::min(wanted, piece->second);
  take_range(ranges, piece, taken);

  Block* block = take_node();
  block->region = static_cast<RegionId>(slot - regions_.begin());
  block->length = taken;
  block->position = base_ + position;
  *slot = Region{position, taken, block, use, domain};
  link(block);
  stats_.regions.add(1);
  stats_.reserved_bytes.add(static_cast<std::int64_t>(taken));
  return block;
}

Block* RegionAllocator::allocate(std::uint64_t bytes, Use use, const Placement& placement) {
  if (bytes == 0)
    return nullptr;
  check_placement(placement);
  const std::lock_guard lock(mutex_);
  if (Block* block = allocate_locked(bytes, use, placement))
    return block;
  refuse(bytes);
}

Block* RegionAllocator::try_allocate(std::uint64_t bytes, Use use, const Placement& placement) {
  if (bytes == 0)
    return nullptr;
  check_placement(placement);
  const std::lock_guard lock(mutex_);
  Block* block = allocate_locked(bytes, use, placement);
  if (block == nullptr)
    ++stats_.retries;
  return block;
}

void RegionAllocator::check_placement(const Placement& placement) const {
  for (const std::uint32_t domain : placement.domains)
    if (domain >= options_.domains)
      throw InvalidArgument("there is no memory domain " + std::to_string(domain) + ": the device has " +
                            std::to_string(options_.domains));
  if (placement.granule % kStickBytes != 0)
    throw InvalidArgument("an interleaving granule of " + std::to_string(placement.granule) +
                          " bytes is not a multiple of " + std::to_string(kStickBytes));
  if (placement.granule != 0 && placement.domains.empty())
    throw InvalidArgument("interleaving needs at least one memory domain");
  if (placement.granule == 0 && placement.domains.size() > 1)
    throw InvalidArgument("interleaving over " + std::to_string(placement.domains.size()) +
                          " memory domains needs a granule");
}

std::uint32_t RegionAllocator::emptiest_domain() const {
  return static_cast<std::uint32_t>(std::min_element(domain_in_use_.begin(), domain_in_use_.end()) -
                                    domain_in_use_.begin());
}

Block* RegionAllocator::allocate_locked(std::uint64_t bytes, Use use, const Placement& placement) {
  if (bytes > capacity_)
    return nullptr;
  const std::uint64_t length = round_up(bytes, kStickBytes);
  Block* block = nullptr;
  if (placement.granule != 0)
    block = interleave(length, use, placement);
  else
    block = carve(length, use, placement.domains.empty() ? emptiest_domain() : placement.domains.front());
  if (block == nullptr)
    return nullptr;
  block->requested = bytes;
  live_.emplace(block->position, block);
  if (use == Use::Program) {
    stats_.program_bytes.add(static_cast<std::int64_t>(length));
    return block;
  }
  stats_.allocations.add(1);
  stats_.allocated_bytes.add(static_cast<std::int64_t>(length));
  stats_.requested_bytes.add(static_cast<std::int64_t>(bytes));
  return block;
}

Block* RegionAllocator::interleave(std::uint64_t length, Use use, const Placement& placement) {
  const auto room = std::find_if(windows_.begin(), windows_.end(),
                                 [&](const auto& entry) { return entry.second >= length; });
  if (room == windows_.end())
    return nullptr;
  Interleaved parts{{}, placement, use};
  for (std::uint64_t done = 0; done < length; done += placement.granule) {
    const std::uint32_t domain = placement.domains[parts.pieces.size() % placement.domains.size()];
    Block* piece = carve(std::min(placement.granule, length - done), use, domain);
    if (piece == nullptr) {
      for (Block* taken : parts.pieces)
        give_back(taken);
      return nullptr;
    }
    parts.pieces.push_back(piece);
  }
  Block* window = take_node();
  window->region = kManyRegions;
  window->length = length;
  window->position = room->first;
  window->live = true;
  take_range(windows_, room, length);
  interleaved_.emplace(window, std::move(parts));
  return window;
}

Block* RegionAllocator::carve(std::uint64_t length, Use use, std::uint32_t domain) {
  Block* block = find_fit(pool(use, domain), length);
  if (block == nullptr) {
    block = reserve_region(length, use, domain);
    if (block == nullptr && release_free_regions_locked() != 0) {
      ++stats_.retries;
      block = reserve_region(length, use, domain);
    }
  }
  if (block == nullptr)
    return nullptr;
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
  domain_in_use_[domain] += length;
  return block;
}

void RegionAllocator::give_back(Block* block) {
  domain_in_use_[regions_[block->region].domain] -= block->length;
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

void RegionAllocator::free(Block* block) {
  if (block == nullptr)
    return;
  const std::lock_guard lock(mutex_);
  if (!block->live)
    throw MemoryFault("a block of device memory was freed twice");
  live_.erase(block->position);
  if (use_of(*block) == Use::Program) {
    stats_.program_bytes.remove(static_cast<std::int64_t>(block->length));
  } else {
    stats_.allocations.remove(1);
    stats_.allocated_bytes.remove(static_cast<std::int64_t>(block->length));
    stats_.requested_bytes.remove(static_cast<std::int64_t>(block->requested));
  }
  if (block->region != kManyRegions) {
    give_back(block);
    return;
  }
  const auto parts = interleaved_.find(block);
  for (Block* piece : parts->second.pieces)
    give_back(piece);
  interleaved_.erase(parts);
  arena_.discard(block->position, block->length);
  give_range(windows_, block->position, block->length);
  give_node(block);
}

const Block* RegionAllocator::holder_of(std::uint64_t position) const {
  const auto after = live_.upper_bound(position);
  if (after == live_.begin())
    return nullptr;
  const Block* block = std::prev(after)->second;
  return position - block->position < block->length ? block : nullptr;
}

Use RegionAllocator::use_of(const Block& block) const {
  return block.region == kManyRegions ? interleaved_.at(&block).use : regions_[block.region].use;
}

Description RegionAllocator::describe(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  const Block* block = holder_of(position);
  if (block == nullptr)
    return {};
  const auto chunk_of = [](const Block& piece) { return Chunk{piece.region, piece.offset, piece.length}; };
  if (block->region != kManyRegions)
    return {{chunk_of(*block)}, {{regions_[block->region].domain}, 0}};
  const Interleaved& parts = interleaved_.at(block);
  Description result{{}, parts.placement};
  for (const Block* piece : parts.pieces)
    result.chunks.push_back(chunk_of(*piece));
  return result;
}

Block* RegionAllocator::at(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  const auto entry = live_.find(position);
  return entry == live_.end() ? nullptr : entry->second;
}

std::optional<Block> RegionAllocator::find(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  const Block* block = holder_of(position);
  return block == nullptr ? std::nullopt : std::optional(*block);
}

Use RegionAllocator::check(std::uint64_t position, std::uint64_t bytes) const {
  if (bytes == 0)
    return Use::Tensor;
  const std::lock_guard lock(mutex_);
  const Block* block = holder_of(position);
  if (block == nullptr)
    throw MemoryFault("access of " + std::to_string(bytes) + " bytes at position " +
                      std::to_string(position) + ": no live allocation is there");
  const std::uint64_t within = position - block->position;
  if (bytes <= block->length - within)
    return use_of(*block);
  const std::string where =
      block->region == kManyRegions
          ? "byte " + std::to_string(within) + " of an interleaved allocation"
          : "region " + std::to_string(block->region) + ", offset " + std::to_string(block->offset + within);
  throw MemoryFault("access of " + std::to_string(bytes) + " bytes at " + where +
                    " runs past the end of its allocation of " + std::to_string(block->length) + " bytes");
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
    give_range(unreserved_[region.domain], region.position, region.length);
    region = Region{};
  }
  return released;
}

void RegionAllocator::refuse(std::uint64_t bytes) {
  ++stats_.out_of_memory;
  const std::uint64_t available = free_bytes_locked();
  std::uint64_t largest = 0;
  for (const AddressRanges& ranges : unreserved_)
    for (const auto& [position, length] : ranges)
      largest = std::max(largest, length);
  std::string list;
  for (const RegionInfo& region : regions_locked()) {
    largest = std::max(largest, region.largest_free);
    list += (list.empty() ? "; by region: " : ", ") + std::to_string(region.id) + ": " +
            std::to_string(region.free) + " free, largest " + std::to_string(region.largest_free);
  }
  const auto in_use = std::to_string(stats_.regions.current);
  throw OutOfMemory("cannot allocate " + std::to_string(bytes) + " bytes: " + std::to_string(available) +
                    " of " + std::to_string(capacity_) + " bytes are free, the largest free block has " +
                    std::to_string(largest) + " bytes, " +
                    (options_.mode == Mode::VF
                         ? in_use + " of " + std::to_string(options_.handles) + " region handles are in use"
                         : in_use + " region handles are in use") +
                    list);
}

std::vector<RegionInfo> RegionAllocator::regions_locked() const {
  std::vector<RegionInfo> result;
  for (const Region& region : regions_) {
    if (region.length == 0)
      continue;
    RegionInfo info{static_cast<RegionId>(&region - regions_.data()),
                    region.use,
                    region.domain,
                    base_ + region.position,
                    region.length,
                    0,
                    0};
    for (const Block* block = region.head; block != nullptr; block = block->next) {
      if (block->live)
        continue;
      info.free += block->length;
      info.largest_free = std::max(info.largest_free, block->length);
    }
    result.push_back(info);
  }
  return result;
}

std::vector<RegionInfo> RegionAllocator::regions() const {
  const std::lock_guard lock(mutex_);
  return regions_locked();
}

MemoryStats RegionAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::uint64_t RegionAllocator::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return free_bytes_locked();
}

std::uint64_t RegionAllocator::free_bytes_locked() const {
  return capacity_ -
         static_cast<std::uint64_t>(stats_.allocated_bytes.current + stats_.program_bytes.current);
}

void RegionAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge* gauge : {&stats_.allocations, &stats_.allocated_bytes, &stats_.requested_bytes,
                       &stats_.program_bytes, &stats_.regions, &stats_.reserved_bytes})
    gauge->peak = gauge->current;
}

void RegionAllocator::reset_totals() {
  const std::lock_guard lock(mutex_);
  for (Gauge* gauge : {&stats_.allocations, &stats_.allocated_bytes, &stats_.requested_bytes,
                       &stats_.program_bytes, &stats_.regions, &stats_.reserved_bytes})
    gauge->total = gauge->freed = 0;
  stats_.retries = 0;
  stats_.out_of_memory = 0;
}

} // namespace spyre::card
