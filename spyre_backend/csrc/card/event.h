// Events: versioned marks in queues.
#pragma once

#include "card/cost_model.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace spyre::card {

// A mark that a queue signals and others wait for. Recording it again makes a new version; a wait names the
// version that existed when it was asked for. Thread-safe; takes no other lock.
//
// An interface: SoftwareEvent keeps the state in host memory; a card that signals by itself would implement
// it over its own flags and call Scheduler::notify() when one changes. On the virtual clock, where nothing
// happens outside of operations, a signal must be there when its operation has completed.
class Event {
public:
  virtual ~Event() = default;

  // Announces one more recording and returns its version, starting at 1.
  virtual std::uint64_t announce() = 0;
  // The latest announced version; 0 if never recorded.
  virtual std::uint64_t version() const = 0;

  // Everything submitted before the recording has completed. `time` on the scheduler's clock.
  virtual void signal(std::uint64_t version, Ticks time) = 0;
  // Something before the recording failed: waiters get `cause`.
  virtual void fail(std::uint64_t version, std::exception_ptr cause, Ticks time) = 0;

  // True when `version` was signalled or failed. Version 0 always is.
  virtual bool reached(std::uint64_t version) const = 0;
  // Why a reached version failed; null if it did not. Of versions that are followed by many failures the
  // outcome may be forgotten: then this is an InvalidArgument that says so, never null.
  virtual std::exception_ptr failure(std::uint64_t version) const = 0;
  // Blocks the calling thread until `version` is reached.
  virtual void block(std::uint64_t version) const = 0;
  // Time of the latest signal. Throws InvalidArgument when the latest version has not been signalled.
  virtual Ticks time() const = 0;

  // For messages.
  virtual std::string name() const = 0;
};

// Makes events. Devices of one process share a backend.
class EventBackend {
public:
  virtual ~EventBackend() = default;
  // `name` is for messages; a number takes its place when it is empty.
  virtual std::shared_ptr<Event> create(std::string name) = 0;
};

// Events in host memory.
class SoftwareEvent final : public Event {
public:
  explicit SoftwareEvent(std::string name = {});

  std::uint64_t announce() override;
  std::uint64_t version() const override;
  void signal(std::uint64_t version, Ticks time) override;
  void fail(std::uint64_t version, std::exception_ptr cause, Ticks time) override;
  bool reached(std::uint64_t version) const override;
  std::exception_ptr failure(std::uint64_t version) const override;
  void block(std::uint64_t version) const override;
  Ticks time() const override;
  std::string name() const override { return name_; }

private:
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_cv_;
  std::uint64_t announced_ = 0;
  std::uint64_t reached_ = 0;
  Ticks time_ = 0;
  std::map<std::uint64_t, std::exception_ptr> failures_; // the latest
  std::uint64_t forgotten_ = 0;                          // the latest failure that is no longer kept
};

class SoftwareEvents final : public EventBackend {
public:
  std::shared_ptr<Event> create(std::string name) override {
    return std::make_shared<SoftwareEvent>(std::move(name));
  }
};

} // namespace spyre::card
