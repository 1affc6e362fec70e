// Which operators the device has: what PyTorch is told when the extension is loaded.
#include "eager/kernel.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <torch/library.h>
#include <tuple>

namespace spyre::eager {
namespace {

// For operators that other libraries define after us.
void run_unplanned(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static std::shared_mutex mutex;
  static auto* kernels = new std::map<c10::OperatorName, std::unique_ptr<EagerKernel>,
                                      bool (*)(const c10::OperatorName&, const c10::OperatorName&)>(
      [](const c10::OperatorName& a, const c10::OperatorName& b) {
        return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
      });
  EagerKernel* kernel = nullptr;
  {
    const std::shared_lock lock(mutex);
    if (const auto known = kernels->find(op.operator_name()); known != kernels->end())
      kernel = known->second.get();
  }
  if (kernel == nullptr) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.hasKernelForDispatchKey(c10::DispatchKey::CPU), "Could not run '", op.operator_name(),
        "' with arguments from the 'spyre' backend: it has no kernel for spyre and none for "
        "the CPU that could run on device memory.");
    const std::lock_guard lock(mutex);
    auto& place = (*kernels)[op.operator_name()];
    if (place == nullptr)
      place = std::make_unique<EagerKernel>(op);
    kernel = place.get();
  }
  (*kernel)(op, keys, stack);
}

// Operators with a kernel of our own, or that would be wrong on host views.
const std::set<std::string_view>& own_operators() {
  static const std::set<std::string_view> names{
      "aten::empty.memory_format",
      "aten::empty_strided",
      "aten::_efficientzerotensor",
      "aten::as_strided",
      "aten::view",
      "aten::_reshape_alias",
      "aten::_unsafe_view",
      "aten::alias",
      "aten::unfold",
      "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor",
      "aten::set_",
      "aten::_copy_from",
      "aten::_copy_from_and_resize",
      "aten::_local_scalar_dense",
      "aten::record_stream",
      "aten::copy_",
      "aten::convolution_overrideable",
      "aten::convolution_backward_overrideable",
      "aten::_thnn_fused_lstm_cell",
      "aten::_thnn_fused_lstm_cell_backward_impl",
      "aten::_thnn_fused_gru_cell",
      "aten::_thnn_fused_gru_cell_backward",
      "aten::is_pinned",
      "aten::_pin_memory",
      "aten::set_data",
      "aten::_has_compatible_shallow_copy_type",
      "aten::is_set_to",
  };
  return names;
}

// Operators that PyTorch composes for every device, but refuses on devices it does not know by name.
const std::set<std::string_view>& host_composites() {
  static const std::set<std::string_view> names{"aten::mode.values"};
  return names;
}

// The table of PyTorch's own operators: every one with a CPU kernel gets a planned kernel, so that even
// operators whose functional form would be composed on the device take one step.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten")
      continue;
    const auto op = dispatcher.findSchema(name);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!op || (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && host_composites().count(full) == 0) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    if (own_operators().count(full) != 0)
      continue;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<EagerKernel>(*op)));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_unplanned>());
}

} // namespace
} // namespace spyre::eager
