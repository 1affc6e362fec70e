// What Python sees of the bridge.
#include "bridge/allocator.h"
#include "bridge/generator.h"
#include "bridge/host_allocator.h"
#include "bridge/runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace spyre::bridge {
namespace {

card::Device& device_at(int index) {
  return Runtime::get().device(checked_index(static_cast<c10::DeviceIndex>(index)));
}

py::object generator_object(int index) {
  const at::Generator& generator = default_generator(static_cast<c10::DeviceIndex>(index));
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator));
}

} // namespace
} // namespace spyre::bridge

PYBIND11_MODULE(_C, module) {
  using namespace spyre::bridge;
  // Everything that may wait for a device lets other Python threads run meanwhile.
  using Released = py::call_guard<py::gil_scoped_release>;

  module.doc() = "The bridge between PyTorch and the simulated card.";
  module.attr("DEVICE_TYPE") = static_cast<int>(c10::DeviceType::PrivateUse1);
  module.def("start", [] { Runtime::get(); }, Released());
  module.def("started", &Runtime::started);
  module.def("in_bad_fork", &Runtime::in_bad_fork);
  module.def(
      "shut_down",
      [] {
        if (Runtime::started())
          Runtime::get().shut_down();
      },
      Released());
  module.def("device_count", [] { return static_cast<int>(device_count()); });
  module.def("current_device", [] { return static_cast<int>(current_device()); });
  module.def("set_device", [](int index) { set_device(static_cast<c10::DeviceIndex>(index)); });
  module.def(
      "synchronize",
      [](int index) {
        if (Runtime::started())
          device_at(index).synchronize();
      },
      Released());
  module.def("default_generator", &generator_object);
  module.def("total_memory", [] { return Settings::get().memory_bytes; });
  module.def("region_handles", [] { return Settings::get().handles; });
}
