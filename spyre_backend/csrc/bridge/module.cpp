// What Python sees of the bridge.
#include "bridge/allocator.h"
#include "bridge/fused_kernel.h"
#include "bridge/generator.h"
#include "bridge/host_allocator.h"
#include "bridge/python_errors.h"
#include "bridge/runtime.h"
#include "eager/bindings.h"
#include "eager/table.h"
#include "programs/bindings.h"

#include <ATen/core/CachingHostAllocator.h>
#include <array>
#include <memory>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace spyre::bridge {
namespace {

card::Device& device_at(int index) {
  return Runtime::get().device(checked_index(static_cast<c10::DeviceIndex>(index)));
}

// What a Python function threw keeps its type, its text and its traceback, whichever thread it ran in.
class PythonCallback {
public:
  explicit PythonCallback(py::function call) : call_(std::make_shared<py::function>(std::move(call))) {}
  PythonCallback(const PythonCallback&) = default;
  PythonCallback(PythonCallback&&) = default;
  ~PythonCallback() {
    const py::gil_scoped_acquire gil;
    call_.reset();
  }

  void operator()() const {
    const py::gil_scoped_acquire gil;
    PyObject* result = PyObject_CallNoArgs(call_->ptr());
    if (result == nullptr) {
      python_error error;
      error.persist();
      throw error;
    }
    Py_DECREF(result);
  }

private:
  std::shared_ptr<py::function> call_;
};

void launch_host_callback(int device, card::QueueId stream, py::function call) {
  card::Operation operation{card::HostCallback{PythonCallback(std::move(call))}};
  operation.detached = true;
  operation.label = "python callback";
  const py::gil_scoped_release released;
  translated([&] { device_at(device).queue(stream).submit(std::move(operation)); });
}

py::dict settings() {
  const Settings& settings = Settings::get();
  py::dict result;
  result["mode"] = settings.mode == card::Mode::PF ? "PF" : "VF";
  result["devices"] = settings.devices;
  result["memory_bytes"] = settings.memory_bytes;
  result["handles"] = settings.handles;
  result["domains"] = settings.domains;
  result["clock"] = settings.clock == card::ClockKind::Wall ? "wall" : "virtual";
  result["host_workers"] = settings.host_workers;
  result["split_streams"] = settings.split_streams;
  result["staging_buffers"] = settings.staging_buffers;
  result["correction_regions"] = settings.correction_regions;
  result["eager_programs"] = settings.eager_programs;
  constexpr std::array kFallbacks{"allow", "warn", "error"};
  result["fallback"] = kFallbacks[static_cast<std::size_t>(settings.fallback)];
  constexpr std::array kSchemes{"patch", "windows", "graph"};
  result["launch"] = kSchemes[static_cast<std::size_t>(settings.launch)];
  return result;
}

// Per stream: id, priority, pending operations, the first error's text or None.
py::list streams_of(int device) {
  py::list result;
  const Runtime& runtime = Runtime::get();
  for (const card::Queue* queue : device_at(device).queues()) {
    if (runtime.prepares(*queue))
      continue;
    const std::exception_ptr error = queue->error();
    result.append(py::make_tuple(queue->id(), queue->priority(), queue->pending(),
                                 error ? py::object(py::str(card::text_of(error))) : py::none()));
  }
  return result;
}

// Per region in use: id, use, domain, length, free bytes, largest free block.
py::list regions_of(int device) {
  py::list result;
  for (const card::RegionInfo& region : device_at(device).memory().regions())
    result.append(py::make_tuple(region.id, region.use == card::Use::Program ? "program" : "tensor",
                                 region.domain, region.length, region.free, region.largest_free));
  return result;
}

// The allocation that holds a device address: its chunks (region, offset, length), domains and granule; None
// where there is none.
py::object describe(std::uintptr_t address) {
  Runtime& runtime = Runtime::get();
  const void* token = reinterpret_cast<const void*>(address);
  if (!runtime.arena().holds_token(token))
    return py::none();
  const card::Description description =
      runtime.device(runtime.device_of(token)).memory().describe(runtime.arena().position(token));
  py::list chunks;
  for (const card::Chunk& chunk : description.chunks)
    chunks.append(py::make_tuple(chunk.region, chunk.offset, chunk.length));
  return py::make_tuple(chunks, py::cast(description.placement.domains), description.placement.granule);
}

py::list as_tuples(const std::vector<card::Interval>& intervals) {
  py::list result;
  for (const card::Interval& interval : intervals)
    result.append(py::make_tuple(interval.device, card::name_of(interval.pipeline), interval.queue,
                                 interval.operation, interval.label, interval.start, interval.end));
  return result;
}

// Frees programs of eager operators, and tensors that only a reference cycle keeps. Python may be on its way
// out.
void collect_garbage() {
  spyre::eager::Table::clear();
  if (Py_IsInitialized() == 0)
    return;
  const py::gil_scoped_acquire gil;
  PyGC_Collect();
}

// A thread that sleeps for another one must not keep Python from it: the other may run a Python callback.
std::function<void()> leave_python() {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0)
    return nullptr;
  return [state = PyEval_SaveThread()] { PyEval_RestoreThread(state); };
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
  add_error_types(module.ptr());
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (python_error& known) {
      known.restore();
    } catch (torch::PyTorchError& known) {
      PyErr_SetString(known.python_type(), known.what());
    }
  });
  set_garbage_collector(&collect_garbage);
  set_before_sleep(&leave_python);
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
          translated([&] { device_at(index).synchronize(); });
      },
      Released());
  module.def("default_generator", &generator_object);
  module.def("settings", &settings);
  module.def("streams", &streams_of);
  module.def("regions", &regions_of);
  module.def("describe", &describe);
  module.def("set_placement", [](std::vector<std::uint32_t> domains, std::uint64_t granule) {
    set_placement({std::move(domains), granule});
  });
  module.def("placement", [] {
    return py::make_tuple(py::cast(current_placement().domains), current_placement().granule);
  });
  module.def("launch_host_callback", &launch_host_callback);
  module.def(
      "run_fused_kernel",
      [](std::uintptr_t kernel, int device, const std::vector<at::Tensor>& tensors,
         const std::vector<std::int64_t>& numbers) {
        run_fused_kernel(reinterpret_cast<FusedKernel>(kernel),
                         checked_index(static_cast<c10::DeviceIndex>(device)), tensors, numbers);
      },
      Released());
  module.def("now", [] { return Runtime::get().scheduler().now(); }, Released());
  module.def("start_recording", [] { Runtime::get().scheduler().start_recording(); }, Released());
  module.def("take_recording", [] { return as_tuples(Runtime::get().scheduler().take_recording()); });
  module.def("stop_recording", [] { return as_tuples(Runtime::get().scheduler().stop_recording()); });
  spyre::programs::add_programs(module);
  spyre::eager::add_eager(module);
}
