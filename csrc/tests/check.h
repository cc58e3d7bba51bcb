// A test harness in one header: tests that register themselves, checks that say where and why they failed.
//
// A failed check ends its test by an exception, so checks belong to the thread that runs the test.
#pragma once

#include <cmath>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::tests {

struct Test {
  std::string name;  // "subject: sentence"
  std::function<void()> body;
};

inline std::vector<Test>& AllTests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(std::string name, std::function<void()> body) {
    AllTests().push_back({std::move(name), std::move(body)});
  }
};

struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  throw CheckFailed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// What a check compared, and `where` (loop variables) the test was.
template <typename A, typename B>
std::string Compared(const char* expression, const A& a, const B& b, const std::string& where) {
  std::ostringstream text;
  text.precision(9);
  text << expression << ": " << a << " against " << b;
  if (!where.empty()) text << " at " << where;
  return text.str();
}

// The words that say where a test was, for the `where` of a check: names and loop variables in turn.
template <typename... Words>
std::string Where(const Words&... words) {
  std::ostringstream text;
  ((text << words << " "), ...);
  return text.str();
}

}  // namespace headrace::tests

#define HEADRACE_JOIN2(a, b) a##b
#define HEADRACE_JOIN(a, b) HEADRACE_JOIN2(a, b)

#define TEST(name)                                                                     \
  static void HEADRACE_JOIN(TestBody, __LINE__)();                                     \
  static const ::headrace::tests::Registration HEADRACE_JOIN(kRegistration, __LINE__)( \
      name, HEADRACE_JOIN(TestBody, __LINE__));                                        \
  static void HEADRACE_JOIN(TestBody, __LINE__)()

// The arguments after those compared go to Where().
#define CHECK(condition, ...)                                                                          \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      const std::string where = ::headrace::tests::Where(__VA_ARGS__);                                 \
      ::headrace::tests::Fail(__FILE__, __LINE__, #condition + (where.empty() ? "" : " at " + where)); \
    }                                                                                                  \
  } while (false)

#define CHECK_EQ(a, b, ...)                                                                                    \
  do {                                                                                                         \
    const auto check_a = (a);                                                                                  \
    const auto check_b = (b);                                                                                  \
    if (!(check_a == check_b)) {                                                                               \
      ::headrace::tests::Fail(                                                                                 \
          __FILE__, __LINE__,                                                                                  \
          ::headrace::tests::Compared(#a " == " #b, check_a, check_b, ::headrace::tests::Where(__VA_ARGS__))); \
    }                                                                                                          \
  } while (false)

// |a - b| <= tolerance; NaN is near nothing.
#define CHECK_NEAR(a, b, tolerance, ...)                                                                         \
  do {                                                                                                           \
    const double check_a = (a);                                                                                  \
    const double check_b = (b);                                                                                  \
    if (!(std::fabs(check_a - check_b) <= (tolerance))) {                                                        \
      ::headrace::tests::Fail(                                                                                   \
          __FILE__, __LINE__,                                                                                    \
          ::headrace::tests::Compared(#a " near " #b, check_a, check_b, ::headrace::tests::Where(__VA_ARGS__))); \
    }                                                                                                            \
  } while (false)

#define CHECK_THROWS(expression, Exception)                                                             \
  do {                                                                                                  \
    bool check_threw = false;                                                                           \
    try {                                                                                               \
      static_cast<void>(expression);                                                                    \
    } catch (const Exception&) {                                                                        \
      check_threw = true;                                                                               \
    }                                                                                                   \
    if (!check_threw) ::headrace::tests::Fail(__FILE__, __LINE__, #expression " threw no " #Exception); \
  } while (false)
