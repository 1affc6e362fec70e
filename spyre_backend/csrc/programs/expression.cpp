#include "programs/expression.h"

#include "card/error.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spyre::programs {
namespace {

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0)
    throw card::InvalidArgument("division by zero");
  if (b == -1)
    return -a;
  const std::int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t apply(Step step, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (step) {
  case Step::Add:
    overflow = __builtin_add_overflow(a, b, &result);
    break;
  case Step::Subtract:
    overflow = __builtin_sub_overflow(a, b, &result);
    break;
  case Step::Multiply:
    overflow = __builtin_mul_overflow(a, b, &result);
    break;
  case Step::FloorDivide:
    result = floor_divide(a, b);
    break;
  case Step::Modulo:
    result = a - floor_divide(a, b) * b;
    break;
  case Step::Min:
    result = std::min(a, b);
    break;
  case Step::Max:
    result = std::max(a, b);
    break;
  case Step::Literal:
  case Step::Symbol:
    break;
  }
  if (overflow)
    throw card::InvalidArgument("a size does not fit into 64 bits");
  return result;
}

} // namespace

Expression::Expression(std::vector<std::pair<Step, std::int64_t>> steps, std::size_t symbols) {
  std::size_t depth = 0;
  for (const auto& [step, value] : steps) {
    if (step < Step::Literal || step > Step::Max)
      throw card::InvalidArgument("unknown step " + std::to_string(static_cast<std::int64_t>(step)) +
                                  " in an expression");
    if (step == Step::Symbol && (value < 0 || static_cast<std::size_t>(value) >= symbols))
      throw card::InvalidArgument("an expression names symbol " + std::to_string(value) + " of " +
                                  std::to_string(symbols));
    if (step > Step::Symbol && depth < 2)
      throw card::InvalidArgument("an expression lacks an operand");
    depth = step > Step::Symbol ? depth - 1 : depth + 1;
  }
  if (depth != 1)
    throw card::InvalidArgument("an expression leaves " + std::to_string(depth) + " numbers, not one");
  if (steps.size() == 1 && steps.front().first == Step::Literal)
    literal_ = steps.front().second;
  else
    steps_ = std::move(steps);
}

std::int64_t Expression::as_symbol() const {
  return steps_.size() == 1 ? steps_.front().second : -1;
}

std::int64_t Expression::evaluate_steps(std::span<const std::int64_t> symbols) const {
  std::vector<std::int64_t> stack;
  stack.reserve(steps_.size());
  for (const auto& [step, value] : steps_) {
    if (step == Step::Literal) {
      stack.push_back(value);
    } else if (step == Step::Symbol) {
      stack.push_back(symbols[static_cast<std::size_t>(value)]);
    } else {
      const std::int64_t right = stack.back();
      stack.pop_back();
      stack.back() = apply(step, stack.back(), right);
    }
  }
  return stack.back();
}

} // namespace spyre::programs
