// Calls of operators as prepared programs, by key.
#pragma once

#include "eager/signature.h"
#include "programs/plan.h"

#include <atomic>
#include <c10/core/ScalarType.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace spyre::eager {

// What a call of one key returns.
struct Result {
  int argument = -1; // the written argument of the schema that it is; -1 for a new tensor
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::size_t bytes = 0;
};

// How calls of one key run: as a prepared program, or, when there is no plan, as one step of a host kernel.
struct Entry {
  std::shared_ptr<const programs::JobPlan> plan;
  std::vector<Result> results;
  const char* reason = nullptr; // why there is no plan; lives as long as the process
  mutable std::atomic<std::uint64_t> used{0};
};

// The entries of one operator, by key. Thread-safe.
//
// All tables together keep at most SPYRE_EAGER_PROGRAMS entries: the half that was used longest ago goes when
// there are more. Whoever runs an entry holds it, so it may go meanwhile.
class Table {
public:
  Table();
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::shared_ptr<const Entry> find(std::span<const std::int64_t> key) const;
  // Puts an entry in the place of the one that is there, if there is one.
  void put(std::span<const std::int64_t> key, std::shared_ptr<const Entry> entry);

  // Gives up every entry of every table, and the memory of its program with it.
  static void clear();

private:
  using Key = std::vector<std::int64_t>;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::int64_t> key) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const std::int64_t> a, std::span<const std::int64_t> b) const;
  };

  static void make_room();

  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Entry>, Hash, Equal> entries_;
};

} // namespace spyre::eager
