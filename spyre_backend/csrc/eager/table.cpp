#include "eager/table.h"

#include "bridge/settings.h"

#include <algorithm>
#include <set>

namespace spyre::eager {
namespace {

// All tables of the process. They belong to kernels, which are never unregistered before the process ends.
struct Tables {
  std::mutex mutex;
  std::set<Table*> all;
  std::atomic<std::size_t> entries{0};
  std::atomic<std::uint64_t> time{0}; // calls so far
};

Tables& tables() {
  static auto* instance = new Tables;
  return *instance;
}

} // namespace

std::size_t Table::Hash::operator()(std::span<const std::int64_t> key) const {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int64_t word : key) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
  }
  return hash;
}

bool Table::Equal::operator()(std::span<const std::int64_t> a, std::span<const std::int64_t> b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

Table::Table() {
  const std::lock_guard lock(tables().mutex);
  tables().all.insert(this);
}

Table::~Table() {
  const std::lock_guard lock(tables().mutex);
  tables().all.erase(this);
}

std::shared_ptr<const Entry> Table::find(std::span<const std::int64_t> key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end())
    return nullptr;
  found->second->used.store(tables().time.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  return found->second;
}

void Table::put(std::span<const std::int64_t> key, std::shared_ptr<const Entry> entry) {
  entry->used = tables().time.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<const Entry> before; // ends without the lock: it frees device memory
  {
    const std::lock_guard lock(mutex_);
    auto& place = entries_[Key(key.begin(), key.end())];
    if (place == nullptr)
      ++tables().entries;
    before = std::exchange(place, std::move(entry));
  }
  if (tables().entries > bridge::Settings::get().eager_programs)
    make_room();
}

void Table::clear() {
  std::vector<std::shared_ptr<const Entry>> dropped; // end last: what they free takes locks of its own
  const std::lock_guard lock(tables().mutex);
  for (Table* table : tables().all) {
    const std::lock_guard inner(table->mutex_);
    for (auto& [key, entry] : table->entries_)
      dropped.push_back(std::move(entry));
    tables().entries -= table->entries_.size();
    table->entries_.clear();
  }
}

void Table::make_room() {
  std::vector<std::shared_ptr<const Entry>> dropped; // end last: what they free takes locks of its own
  const std::lock_guard lock(tables().mutex);
  std::vector<std::uint64_t> times;
  for (const Table* table : tables().all) {
    const std::lock_guard inner(table->mutex_);
    for (const auto& [key, entry] : table->entries_)
      times.push_back(entry->used);
  }
  if (times.size() <= bridge::Settings::get().eager_programs)
    return;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  for (Table* table : tables().all) {
    const std::lock_guard inner(table->mutex_);
    tables().entries -= std::erase_if(table->entries_, [&](auto& item) {
      if (item.second->used > *middle)
        return false;
      dropped.push_back(std::move(item.second));
      return true;
    });
  }
}

} // namespace spyre::eager
