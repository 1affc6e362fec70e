// Events: versioned marks in queues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>

namespace spyre::card {

// A mark that a queue signals and others wait for. Recording it again makes a new version; a wait names the
// version that existed when it was asked for. Thread-safe.
class Event {
public:
  using Clock = std::chrono::steady_clock;

  // Announces one more recording and returns its version, starting at 1.
  std::uint64_t announce();
  // The latest announced version; 0 if never recorded.
  std::uint64_t version() const;

  // Called by the queue when everything submitted before the recording has completed.
  void signal(std::uint64_t version);
  // Called by the queue when something before the recording failed: waiters get `cause`.
  void fail(std::uint64_t version, std::exception_ptr cause);

  // True when `version` was signalled or failed. Version 0 always is.
  bool reached(std::uint64_t version) const;
  // Blocks until `version` is reached; throws Poisoned if it failed.
  void wait(std::uint64_t version) const;
  // Time of the latest signal. Throws InvalidArgument when the latest version has not been signalled.
  Clock::time_point time() const;

private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_cv_;
  std::uint64_t announced_ = 0;
  std::uint64_t reached_ = 0;
  Clock::time_point time_{};
  std::map<std::uint64_t, std::exception_ptr> failures_;
};

} // namespace spyre::card
