#include "programs/bindings.h"

#include "bridge/errors.h"
#include "programs/plan.h"

#include <span>
#include <string_view>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace spyre::programs {
namespace {

using PythonExpression = std::vector<std::pair<std::int64_t, std::int64_t>>;

Expression expression_from(const PythonExpression& steps, std::size_t symbols) {
  std::vector<std::pair<Step, std::int64_t>> converted;
  converted.reserve(steps.size());
  for (const auto& [step, value] : steps)
    converted.emplace_back(static_cast<Step>(step), value);
  return {std::move(converted), symbols};
}

std::vector<Expression> expressions_from(const py::handle& list, std::size_t symbols) {
  std::vector<Expression> result;
  for (const auto& item : list)
    result.push_back(expression_from(item.cast<PythonExpression>(), symbols));
  return result;
}

c10::ScalarType scalar_type(const py::handle& dtype) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "a torch.dtype is expected");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

std::size_t index_from(const py::handle& value, std::size_t limit, const char* what) {
  const auto index = value.cast<std::int64_t>();
  if (index < 0 || static_cast<std::uint64_t>(index) >= limit)
    throw card::InvalidArgument("there is no " + std::string(what) + " " + std::to_string(index));
  return static_cast<std::size_t>(index);
}

Argument argument_from(const py::tuple& given, std::size_t symbols) {
  const auto kind = given[0].cast<std::string>();
  auto name = given[1].cast<std::string>();
  if (kind == "tensor")
    return TensorArgument{std::move(name),
                          scalar_type(given[2]),
                          expressions_from(given[3], symbols),
                          expressions_from(given[4], symbols),
                          given[5].cast<bool>(),
                          given[6].cast<bool>()};
  if (kind == "integer")
    return IntegerArgument{std::move(name), index_from(given[2], symbols, "symbol")};
  if (kind == "scalar")
    return ScalarArgument{std::move(name), given[2].cast<bool>()};
  throw card::InvalidArgument("an argument is a tensor, an integer or a scalar, not '" + kind + "'");
}

PlanDescription description_from(const py::dict& given) {
  PlanDescription result;
  result.name = given["name"].cast<std::string>();
  for (const auto& item : given["symbols"]) {
    const auto symbol = item.cast<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>>();
    result.symbols.push_back(
        {std::get<0>(symbol), std::get<1>(symbol), std::get<2>(symbol), std::get<3>(symbol)});
  }
  const std::size_t symbols = result.symbols.size();
  for (const auto& item : given["arguments"])
    result.arguments.push_back(argument_from(item.cast<py::tuple>(), symbols));
  for (const auto& item : given["slots"]) {
    const auto slot = item.cast<py::tuple>();
    const auto kind = static_cast<Slot::Kind>(index_from(slot[0], 5, "kind of slot"));
    const bool of_argument = kind == Slot::Kind::Address || kind == Slot::Kind::Scalar;
    result.slots.push_back({kind, of_argument ? index_from(slot[1], result.arguments.size(), "argument") : 0,
                            expression_from(slot[2].cast<PythonExpression>(), symbols)});
  }
  result.scratch = expression_from(given["scratch"].cast<PythonExpression>(), symbols);
  result.bytes = expression_from(given["bytes"].cast<PythonExpression>(), symbols);
  result.operations = expression_from(given["operations"].cast<PythonExpression>(), symbols);
  result.fetch_barrier = given["fetch_barrier"].cast<bool>();
  return result;
}

std::span<const std::byte> span_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return {reinterpret_cast<const std::byte*>(view.data()), view.size()};
}

std::shared_ptr<JobPlan> make_plan(const py::dict& given, const py::bytes& text, const py::bytes& constants,
                                   const py::bytes& kernels, const std::string& digest, int device) {
  return bridge::translated([&] {
    PlanDescription description = description_from(given);
    const auto text_bytes = span_of(text);
    const auto constant_bytes = span_of(constants);
    const auto kernel_bytes = span_of(kernels);
    const py::gil_scoped_release released;
    auto library = kernel_bytes.empty() ? nullptr : Library::load(kernel_bytes, digest);
    return std::make_shared<JobPlan>(std::move(description), text_bytes, constant_bytes, std::move(library),
                                     static_cast<c10::DeviceIndex>(device));
  });
}

Given given_from(const py::handle& item) {
  if (THPVariable_Check(item.ptr()))
    return THPVariable_Unpack(item.ptr());
  if (PyLong_Check(item.ptr())) {
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
    TORCH_CHECK_VALUE(overflow == 0, "a number of a launch does not fit into 64 bits");
    return value;
  }
  if (PyFloat_Check(item.ptr()))
    return item.cast<double>();
  TORCH_CHECK_TYPE(false, "a launch takes tensors and numbers, not ",
                   py::str(py::type::handle_of(item).attr("__name__")).cast<std::string>());
}

void launch(const JobPlan& plan, const py::sequence& arguments) {
  std::vector<Given> given;
  given.reserve(arguments.size());
  for (const auto& item : arguments)
    given.push_back(given_from(item));
  const py::gil_scoped_release released;
  bridge::translated([&] { plan.launch(given); });
}

} // namespace

void add_programs(py::module_& module) {
  module.def("scalar_type", [](const py::object& dtype) { return static_cast<int>(scalar_type(dtype)); });
  py::class_<JobPlan, std::shared_ptr<JobPlan>>(module, "JobPlan")
      .def(py::init(&make_plan), py::arg("description"), py::arg("text"), py::arg("constants"),
           py::arg("kernels"), py::arg("digest"), py::arg("device"))
      .def("launch", &launch)
      .def_property_readonly("device", [](const JobPlan& plan) { return static_cast<int>(plan.device()); })
      .def_property_readonly("image_bytes", &JobPlan::image_bytes)
      .def_property_readonly("region_bytes", &JobPlan::region_bytes)
      .def_property_readonly("regions", &JobPlan::regions)
      .def_property_readonly("instructions", &JobPlan::instructions);
}

} // namespace spyre::programs
