#include "eager/bindings.h"

#include "eager/compiler.h"
#include "eager/kernel.h"

#include <atomic>
#include <chrono>
#include <pybind11/complex.h>
#include <thread>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <utility>

namespace py = pybind11;

namespace spyre::eager {
namespace {

// The Python function that compiles; never released, so that nothing of it ends after the interpreter.
py::object* python_compiler = nullptr;

py::object dtype_object(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::tuple sizes_of(c10::IntArrayRef sizes) {
  return py::cast(sizes.vec());
}

// Values of a call as ``spyre_backend/compiler/eager.py`` takes them, with arguments of the program numbered
// in the order in which Signature meets them.
class Describer {
public:
  explicit Describer(const Signature& signature) : arguments_(signature.arguments()) {}

  py::object value(const c10::IValue& given, bool number) {
    const bool tensor = given.isTensor() && given.toTensor().defined();
    if (tensor || (number && (given.isInt() || given.isDouble())))
      return py::make_tuple("argument", next_++);
    if (given.isList()) {
      py::list items;
      for (const c10::IValue& item : given.toListRef())
        items.append(value(item, /*number=*/false));
      return py::make_tuple("list", std::move(items));
    }
    if (given.isDevice())
      return py::make_tuple("device");
    return py::make_tuple("literal", literal(given));
  }

  py::list arguments() const {
    py::list result;
    for (const ProgramArgument& argument : arguments_)
      switch (argument.kind) {
      case ProgramArgument::Kind::Tensor:
        result.append(py::make_tuple(dtype_object(argument.tensor->scalar_type()),
                                     sizes_of(argument.tensor->sizes()), sizes_of(argument.tensor->strides()),
                                     argument.written));
        break;
      case ProgramArgument::Kind::Real:
        result.append("float");
        break;
      case ProgramArgument::Kind::Whole:
        result.append("int");
        break;
      }
    return result;
  }

private:
  static py::object literal(const c10::IValue& given) {
    if (given.isBool())
      return py::bool_(given.toBool());
    if (given.isInt())
      return py::int_(given.toInt());
    if (given.isDouble())
      return py::float_(given.toDouble());
    if (given.isComplexDouble())
      return py::cast(static_cast<std::complex<double>>(given.toComplexDouble()));
    if (given.isString())
      return py::str(given.toStringRef());
    return py::none();
  }

  std::span<const ProgramArgument> arguments_;
  std::size_t next_ = 0;
};

// Compilations that are under way, and whether there may be more: a thread that Python ends while it compiles
// would take the process with it.
std::atomic<int> compiling{0};
std::atomic<bool> stopped{false};

struct Compiling {
  Compiling() { ++compiling; }
  ~Compiling() { --compiling; }
};

Compiled compile_with_python(const Call& call) {
  Describer describer(call.signature);
  py::list values;
  for (std::size_t i = 0; i < call.values.size(); ++i)
    values.append(describer.value(call.values[i], call.roles[i] == Signature::Role::Number));
  py::list results;
  for (const Result& result : call.results)
    results.append(result.argument >= 0 ? py::object(py::none())
                                        : py::make_tuple(dtype_object(result.dtype), sizes_of(result.sizes),
                                                         sizes_of(result.strides)));
  const c10::OperatorName& name = call.op.operator_name();
  const py::object compiled = (*python_compiler)(name.name, name.overload_name, values, describer.arguments(),
                                                 results, static_cast<int>(call.signature.device()));
  if (py::isinstance<py::str>(compiled))
    return compiled.cast<std::string>();
  auto plan = compiled.cast<std::shared_ptr<programs::JobPlan>>();
  if (!plan->runs_directly())
    return "its program needs more than its arguments";
  return std::shared_ptr<const programs::JobPlan>(std::move(plan));
}

Compiled compile(const Call& call) {
  // After memory has run out, so many first calls go by before the next attempt: an attempt collects garbage.
  constexpr int kPause = 1000;
  static std::atomic<int> pause{0};
  const Compiling underway;
  if (stopped || (pause > 0 && pause-- > 0))
    return NotNow{};
  const py::gil_scoped_acquire gil;
  try {
    return compile_with_python(call);
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      // Raised again where Python is free to raise it: the operator has run, and its caller must know.
      PyErr_SetInterrupt();
      return NotNow{};
    }
    if (error.matches(PyExc_RecursionError) || error.matches(PyExc_MemoryError))
      return NotNow{};
    if (error.matches(py::module_::import("torch").attr("OutOfMemoryError"))) {
      pause = kPause;
      return NotNow{};
    }
    return std::string("compiling it failed: ") + error.what();
  }
}

void stop_compiling() {
  stopped = true;
  while (compiling != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

py::list counts() {
  py::list result;
  for (const EagerKernel::Counts& one : EagerKernel::counts())
    result.append(py::make_tuple(one.name, one.compiled, one.launches, one.outside, one.reason));
  return result;
}

} // namespace

void add_eager(py::module_& module) {
  module.def("set_eager_compiler", [](py::object compiler) {
    python_compiler = new py::object(std::move(compiler));
    set_compiler(&compile);
  });
  module.def("stop_eager_compiler", &stop_compiling, py::call_guard<py::gil_scoped_release>());
  module.def("eager_counts", &counts);
  module.def("draws_random", [](const std::string& name, const std::string& overload) {
    return bridge::draws_random(
        c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
  });
}

} // namespace spyre::eager
