#include "bridge/generator.h"

#include "bridge/runtime.h"

#include <mutex>
#include <vector>

namespace spyre::bridge {

SpyreGenerator::SpyreGenerator(c10::DeviceIndex device, std::uint64_t seed)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      engine_(at::detail::createCPUGenerator(seed)) {}

void SpyreGenerator::set_current_seed(std::uint64_t seed) {
  engine_.set_current_seed(seed);
}
void SpyreGenerator::set_offset(std::uint64_t offset) {
  engine_.set_offset(offset);
}
std::uint64_t SpyreGenerator::get_offset() const {
  return engine_.get_offset();
}
std::uint64_t SpyreGenerator::current_seed() const {
  return engine_.current_seed();
}
std::uint64_t SpyreGenerator::seed() {
  return engine_.seed();
}
void SpyreGenerator::set_state(const c10::TensorImpl& state) {
  engine_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> SpyreGenerator::get_state() const {
  return engine_.unsafeGetGeneratorImpl()->get_state();
}

SpyreGenerator* SpyreGenerator::clone_impl() const {
  auto* copy = new SpyreGenerator(device().index());
  copy->engine_ = engine_.clone();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::once_flag once;
  static auto* generators = new std::vector<at::Generator>();
  std::call_once(once, [] {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index)
      generators->push_back(new_generator(index));
  });
  return (*generators)[static_cast<std::size_t>(checked_index(device))];
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<SpyreGenerator>(checked_index(device));
}

} // namespace spyre::bridge
