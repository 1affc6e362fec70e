// What every test of the card uses. No torch.
#pragma once

#include "card/device.h"
#include "card/error.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace spyre::card::test {

inline std::map<std::string, std::function<void()>>& tests() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

struct Register {
  Register(const std::string& name, std::function<void()> body) { tests()[name] = std::move(body); }
};

#define TEST(name)                                                                                           \
  void name();                                                                                               \
  const ::spyre::card::test::Register register_##name(#name, name);                                          \
  void name()

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      std::ostringstream text;                                                                               \
      text << __FILE__ << ":" << __LINE__ << ": " #condition " does not hold";                               \
      throw std::logic_error(text.str());                                                                    \
    }                                                                                                        \
  } while (false)

// The message of the Error that `call` throws.
template <class Error> std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& other) {
    throw std::logic_error(std::string("another error was thrown: ") + other.what());
  }
  throw std::logic_error("nothing was thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kCapacity = 64 * kMiB;

struct Card {
  explicit Card(ClockKind clock = ClockKind::Wall, MemoryOptions memory = {Mode::VF, 8},
                std::uint64_t capacity = kCapacity)
      : arena(RegionAllocator::footprint(capacity)), scheduler({clock, {}, 16}),
        device(scheduler, arena, 0, capacity, memory) {}

  Queue& open(int priority = 0) { return device.queue(device.open_queue(priority)); }

  Arena arena;
  Scheduler scheduler;
  Device device;
};

inline std::shared_ptr<Event> event(const std::string& name = {}) {
  return std::make_shared<SoftwareEvent>(name);
}

inline Operation signal(const std::shared_ptr<Event>& event) {
  return {EventSignal{event, event->announce()}};
}

inline Operation wait(const std::shared_ptr<Event>& event) {
  return {EventWait{event, event->version()}};
}

inline Operation callback(std::function<void()> call) {
  return {HostCallback{std::move(call)}};
}

inline Operation throwing(const std::string& text) {
  return callback([text] { throw std::runtime_error(text); });
}

// A gate that holds who passes through it until the test opens it.
class Gate {
public:
  ~Gate() { open(); }
  // A host callback, on another thread, that ends when the gate is open.
  Operation operation() {
    return {HostCallback{[state = state_] { pass(*state); }}, {}, /*detached=*/true};
  }
  Operation compute() {
    return {Compute{[state = state_](auto) { pass(*state); }}, {}, /*detached=*/true};
  }
  void open() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->open = true;
    }
    state_->opened.notify_all();
  }

private:
  struct State {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  static void pass(State& state) {
    std::unique_lock lock(state.mutex);
    state.opened.wait(lock, [&] { return state.open; });
  }
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

} // namespace spyre::card::test
