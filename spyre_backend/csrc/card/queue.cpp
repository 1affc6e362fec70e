#include "card/queue.h"

#include "card/device.h"
#include "card/item.h"

#include <algorithm>

namespace spyre::card {

Queue::Queue(Scheduler& scheduler, Device& device, std::int64_t id, int priority)
    : scheduler_(scheduler), device_(device), id_(id), priority_(priority) {
  const std::lock_guard lock(scheduler_.mutex_);
  scheduler_.queues_.push_back(this);
}

Queue::~Queue() {
  shut_down();
  const std::lock_guard lock(scheduler_.mutex_);
  std::erase(scheduler_.queues_, this);
}

std::exception_ptr Queue::error() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return error_;
}

std::size_t Queue::pending() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return pending_locked();
}

} // namespace spyre::card
