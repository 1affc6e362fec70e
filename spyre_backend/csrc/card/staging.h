// Host buffers that transfers read from.
#pragma once

#include "card/scheduler.h"

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace spyre::card {

// K buffers of one size. A buffer comes back when the last operation that keeps it has completed, so a
// preparation that runs ahead can never overwrite what a transfer has still to read; with all K in use,
// acquire() holds the caller back. Thread-safe; the buffers may outlive the pool.
class StagingPool {
public:
  // Throws InvalidArgument for no buffers. The scheduler outlives the pool.
  StagingPool(Scheduler& scheduler, std::size_t buffers, std::size_t bytes);

  // One buffer, to be kept by the operations that use it (Operation::keeps). Blocks until one is free.
  std::shared_ptr<std::byte[]> acquire();

  std::size_t buffers() const { return buffers_; }
  std::size_t bytes() const { return bytes_; }

private:
  struct State {
    std::mutex mutex;
    std::condition_variable returned;
    std::vector<std::unique_ptr<std::byte[]>> free;
  };

  Scheduler& scheduler_;
  const std::size_t buffers_;
  const std::size_t bytes_;
  const std::shared_ptr<State> state_;
};

} // namespace spyre::card
