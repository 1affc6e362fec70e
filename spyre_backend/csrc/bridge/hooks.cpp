// Hooks: what device-generic code of PyTorch asks an accelerator.
#include "bridge/allocator.h"
#include "bridge/generator.h"
#include "bridge/host_allocator.h"
#include "bridge/host_view.h"
#include "bridge/resize.h"
#include "bridge/runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

namespace spyre::bridge {
namespace {

struct SpyreHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override {
    try {
      return device_count() > 0;
    } catch (...) {
      return false;
    }
  }
  void init() const override { Runtime::get(); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return Runtime::started() && device >= 0 && device < device_count();
  }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = current_device();
    set_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  at::Device getDeviceFromPtr(void* data) const override {
    return {c10::DeviceType::PrivateUse1, Runtime::get().device_of(data)};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool registered = [] {
  // Referenced by PyTorch until the process ends.
  at::RegisterPrivateUse1HooksInterface(new SpyreHooks());
  // Asked for every tensor that is pickled. There is nothing to add, but a storage without memory would be
  // written as an empty one. Tensors that Python implements have none of their own: the compiler describes
  // its fake tensors this way.
  using Metadata = std::unordered_map<std::string, bool>;
  torch::jit::TensorBackendMetaRegistry(
      c10::DeviceType::PrivateUse1,
      [](const at::Tensor& tensor, Metadata&) {
        if (tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python))
          check_has_memory(*tensor.unsafeGetTensorImpl());
      },
      [](const at::Tensor&, Metadata&) {});
  return true;
}();

} // namespace
} // namespace spyre::bridge
