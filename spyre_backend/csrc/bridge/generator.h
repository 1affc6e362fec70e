// Random numbers: one default generator per device, with the CPU's engine behind it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace spyre::bridge {

// A generator of a device. The same seed gives the same numbers as on the CPU, because device kernels draw
// from the CPU engine inside. Guarded like every generator: hold `mutex_` while changing it.
class SpyreGenerator final : public c10::GeneratorImpl {
public:
  explicit SpyreGenerator(c10::DeviceIndex device, std::uint64_t seed = c10::default_rng_seed_val);

  // The engine that host kernels draw from; it has a lock of its own.
  const at::Generator& engine() const { return engine_; }

  void set_current_seed(std::uint64_t seed) override;
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override;
  std::uint64_t current_seed() const override;
  std::uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

private:
  SpyreGenerator* clone_impl() const override;

  at::Generator engine_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

} // namespace spyre::bridge
