// Device guard: how PyTorch switches devices and streams and handles events.
#include "bridge/allocator.h"
#include "bridge/runtime.h"
#include "card/event.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <memory>

namespace spyre::bridge {
namespace {

constexpr auto kSpyre = c10::DeviceType::PrivateUse1;

// What PyTorch's opaque event pointer points to. Operations share the event itself, so a handle may die
// before they ran.
struct EventHandle {
  std::shared_ptr<card::Event> event = Runtime::get().events().create({});
};

const card::Event& event_of(void* handle) {
  return *static_cast<EventHandle*>(handle)->event;
}

struct SpyreGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSpyre; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() != -1 && device.index() != previous.index())
      set_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override { return {kSpyre, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() != -1)
      set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (...) {
      return 0;
    }
  }

  // Every dtype of the CPU: kernels compute as it does.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    translated([&] { queue_of(stream).synchronize(); });
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    // Nothing can be pending on a runtime that was never started.
    if (Runtime::started())
      translated([&] { Runtime::get().device(checked_index(device)).synchronize(); });
  }

  void record(void** handle, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of device ",
                static_cast<int>(device), " can't be recorded on a stream of device ",
                static_cast<int>(stream.device_index()));
    if (*handle == nullptr)
      *handle = new EventHandle();
    const auto& event = static_cast<EventHandle*>(*handle)->event;
    submit_to(queue_of(stream), {card::EventSignal{event, event->announce()}});
  }
  void block(void* handle, const c10::Stream& stream) const override {
    if (handle == nullptr)
      return;
    const auto& event = static_cast<EventHandle*>(handle)->event;
    submit_to(queue_of(stream), {card::EventWait{event, event->version()}});
  }
  bool queryEvent(void* handle) const override {
    return handle == nullptr ||
           Runtime::get().scheduler().reached(event_of(handle), event_of(handle).version());
  }
  void synchronizeEvent(void* handle) const override {
    if (handle != nullptr)
      translated([&] { Runtime::get().scheduler().wait(event_of(handle), event_of(handle).version()); });
  }
  void destroyEvent(void* handle, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(handle);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(queryEvent(start) && queryEvent(end),
                "Both events must be completed before calculating elapsed time.");
    return static_cast<double>(event_of(end).time() - event_of(start).time()) * 1e-6;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuard);

} // namespace
} // namespace spyre::bridge
