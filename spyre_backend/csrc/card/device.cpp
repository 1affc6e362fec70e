#include "card/device.h"

#include "card/error.h"

#include <exception>
#include <string>
#include <vector>

namespace spyre::card {

Device::Device(const Arena& arena, std::uint64_t position, std::uint64_t capacity, std::uint32_t handles)
    : arena_(arena), position_(position), capacity_(capacity), memory_(arena, position, capacity, handles) {
  default_queue_ = queues_.emplace(0, std::make_unique<Queue>(*this)).first->second.get();
}

Queue& Device::queue(QueueId id) {
  if (id == 0)
    return *default_queue_;
  const std::lock_guard lock(queues_mutex_);
  const auto entry = queues_.find(id);
  if (entry == queues_.end())
    throw InvalidArgument("there is no stream " + std::to_string(id) + " on this device");
  return *entry->second;
}

QueueId Device::open_queue() {
  const std::lock_guard lock(queues_mutex_);
  const QueueId id = queues_.rbegin()->first + 1;
  queues_.emplace(id, std::make_unique<Queue>(*this));
  return id;
}

void Device::synchronize() {
  std::vector<Queue*> queues;
  {
    const std::lock_guard lock(queues_mutex_);
    for (const auto& [id, queue] : queues_)
      queues.push_back(queue.get());
  }
  std::exception_ptr first;
  for (Queue* queue : queues)
    if (auto error = queue->drain(); error && !first)
      first = error;
  if (first)
    std::rethrow_exception(first);
}

bool Device::idle() const {
  const std::lock_guard lock(queues_mutex_);
  for (const auto& [id, queue] : queues_)
    if (!queue->idle())
      return false;
  return true;
}

void Device::shut_down() {
  std::vector<Queue*> queues;
  {
    const std::lock_guard lock(queues_mutex_);
    for (const auto& [id, queue] : queues_)
      queues.push_back(queue.get());
  }
  for (Queue* queue : queues)
    queue->shut_down();
}

std::byte* Device::access(const Span& span) const {
  if (!holds(span.position) && peers_ != nullptr)
    return peers_(span);
  memory_.check(span.position, span.bytes);
  return arena_.backing(span.position);
}

} // namespace spyre::card
