#include "card/queue.h"

#include "card/device.h"
#include "card/error.h"

#include <cstring>
#include <utility>

namespace spyre::card {
namespace {

// Combines one lambda per kind of operation for std::visit.
template <class... Cases> struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases> Match(Cases...) -> Match<Cases...>;

} // namespace

Queue::Queue(Device& device) : device_(device) {}

Queue::~Queue() {
  shut_down();
}

bool Queue::may_run_here(const Operation& operation) const {
  if (busy_ || !waiting_.empty() || operation.detached)
    return false;
  if (const auto* wait = std::get_if<EventWait>(&operation.body))
    return wait->event->reached(wait->version);
  return true;
}

void Queue::submit(Operation operation) {
  std::unique_lock lock(mutex_);
  if (closed_)
    throw ShutDown("the stream was shut down: no work can be submitted");
  if (!may_run_here(operation)) {
    waiting_.push_back(std::move(operation));
    if (!worker_.joinable())
      worker_ = std::thread([this] { work(); });
    if (sleepers_ != 0)
      changed_.notify_all();
    return;
  }
  busy_ = true;
  runner_ = std::this_thread::get_id();
  lock.unlock();
  execute(operation);
  operation = Operation{};
  finish();
}

void Queue::finish() {
  const std::lock_guard lock(mutex_);
  busy_ = false;
  runner_ = {};
  if (sleepers_ != 0)
    changed_.notify_all();
}

void Queue::execute(Operation& operation) {
  std::exception_ptr before;
  {
    const std::lock_guard lock(mutex_);
    before = error_;
  }
  if (before) {
    if (const auto* mark = std::get_if<EventSignal>(&operation.body))
      mark->event->fail(mark->version, before);
    return;
  }
  try {
    std::visit(Match{
                   [&](HostCallback& op) { op.call(); },
                   [&](CopyToDevice& op) {
                     const std::lock_guard pipeline(device_.to_device());
                     std::memcpy(device_.access(op.device), op.host, op.device.bytes);
                   },
                   [&](CopyToHost& op) {
                     const std::lock_guard pipeline(device_.to_host());
                     std::memcpy(op.host, device_.access(op.device), op.device.bytes);
                   },
                   [&](CopyPeer& op) {
                     const std::lock_guard pipeline(device_.to_host());
                     std::memcpy(device_.access(op.target), device_.access(op.source), op.source.bytes);
                   },
                   [&](Compute& op) {
                     const std::lock_guard pipeline(device_.compute());
                     op.kernel();
                   },
                   [&](Fill& op) {
                     const std::lock_guard pipeline(device_.compute());
                     std::memset(device_.access(op.device), op.value, op.device.bytes);
                   },
                   [&](EventSignal& op) { op.event->signal(op.version); },
                   [&](EventWait& op) { op.event->wait(op.version); },
               },
               operation.body);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_)
      error_ = std::current_exception();
  }
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++sleepers_;
    changed_.wait(lock, [&] { return !busy_ && (!waiting_.empty() || closed_); });
    --sleepers_;
    if (waiting_.empty())
      return;
    {
      Operation operation = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      runner_ = std::this_thread::get_id();
      lock.unlock();
      execute(operation);
    }
    lock.lock();
    busy_ = false;
    runner_ = {};
    if (sleepers_ != 0)
      changed_.notify_all();
  }
}

Queue::Turn::Turn(Queue& queue)
    : queue_(queue), nested_([&] {
        std::unique_lock lock(queue.mutex_);
        if (queue.busy_ && queue.runner_ == std::this_thread::get_id())
          return true;
        if (queue.closed_)
          throw ShutDown("the stream was shut down: no work can be submitted");
        if (queue.busy_ || !queue.waiting_.empty()) {
          ++queue.sleepers_;
          queue.changed_.wait(lock, [&] { return !queue.busy_ && queue.waiting_.empty(); });
          --queue.sleepers_;
        }
        if (queue.error_)
          std::rethrow_exception(std::exchange(queue.error_, nullptr));
        queue.busy_ = true;
        queue.runner_ = std::this_thread::get_id();
        return false;
      }()) {
  queue_.device_.compute().lock();
}

Queue::Turn::~Turn() {
  queue_.device_.compute().unlock();
  if (!nested_)
    queue_.finish();
}

bool Queue::idle() const {
  const std::lock_guard lock(mutex_);
  return !busy_ && waiting_.empty();
}

std::exception_ptr Queue::drain() {
  std::unique_lock lock(mutex_);
  // A callback that synchronises its own queue would wait for itself.
  if (busy_ && runner_ == std::this_thread::get_id())
    return nullptr;
  if (busy_ || !waiting_.empty()) {
    ++sleepers_;
    changed_.wait(lock, [&] { return !busy_ && waiting_.empty(); });
    --sleepers_;
  }
  return std::exchange(error_, nullptr);
}

void Queue::synchronize() {
  if (const auto error = drain())
    std::rethrow_exception(error);
}

std::exception_ptr Queue::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Queue::shut_down() {
  std::thread worker;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    worker = std::exchange(worker_, {});
    changed_.notify_all();
  }
  if (worker.joinable())
    worker.join();
}

} // namespace spyre::card
