#include "card/staging.h"

#include "card/error.h"
#include "card/mutant.h"

#include <utility>

namespace spyre::card {

StagingPool::StagingPool(Scheduler& scheduler, std::size_t buffers, std::size_t bytes)
    : scheduler_(scheduler), buffers_(buffers), bytes_(bytes), state_(std::make_shared<State>()) {
  if (buffers == 0)
    throw InvalidArgument("a staging pool needs at least one buffer");
  for (std::size_t i = 0; i < buffers; ++i)
    state_->free.push_back(std::make_unique<std::byte[]>(bytes));
}

std::shared_ptr<std::byte[]> StagingPool::acquire() {
  const auto available = [this] {
    const std::lock_guard lock(state_->mutex);
    return !state_->free.empty();
  };
  scheduler_.pass_time_until(available);
  std::unique_lock lock(state_->mutex);
  state_->returned.wait(lock, [this] { return !state_->free.empty(); });
  std::unique_ptr<std::byte[]> buffer = std::move(state_->free.back());
  state_->free.pop_back();
  if (SPYRE_MUTANT(staging_buffer_released_at_submission)) {
    std::byte* address = buffer.get();
    state_->free.push_back(std::move(buffer));
    return {address, [state = state_](std::byte*) {}};
  }
  return {buffer.release(), [state = state_](std::byte* address) {
            {
              const std::lock_guard inner(state->mutex);
              state->free.emplace_back(address);
            }
            state->returned.notify_one();
          }};
}

} // namespace spyre::card
