#include "bridge/fused_kernel.h"

#include "bridge/host_view.h"
#include "bridge/runtime.h"

#include <c10/util/SmallVector.h>

namespace spyre::bridge {

void run_fused_kernel(FusedKernel kernel, c10::DeviceIndex device, const std::vector<at::Tensor>& tensors,
                      const std::vector<std::int64_t>& numbers) {
  const Runtime& runtime = Runtime::get();
  c10::SmallVector<void*, 16> pointers;
  pointers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    check_has_memory(*tensor.unsafeGetTensorImpl());
    void* address = tensor.data_ptr();
    if (tensor.device().type() == c10::DeviceType::PrivateUse1) {
      TORCH_CHECK(tensor.device().index() == device, "Expected all tensors to be on spyre:", int(device),
                  ", but found one on ", tensor.device());
      if (address != nullptr)
        address = backing_of(runtime, address);
    }
    pointers.push_back(address);
  }
  compute_on(device, [&] { kernel(pointers.data(), numbers.data()); });
}

} // namespace spyre::bridge
