// Runs every test whose name contains the first argument, or all: native_tests [part of a name].

#include <chrono>
#include <cstdio>

#include "check.h"

int main(int argc, char** argv) {
  using namespace headrace::tests;
  const std::string wanted = argc > 1 ? argv[1] : "";
  int num_passed = 0, num_failed = 0;
  for (const Test& test : AllTests()) {
    if (test.name.find(wanted) == std::string::npos) continue;
    const auto started = std::chrono::steady_clock::now();
    try {
      test.body();
      ++num_passed;
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
      std::printf("ok     %6.2f s  %s\n", elapsed.count(), test.name.c_str());
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAILED           %s\n  %s\n", test.name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed == 0 && num_passed > 0 ? 0 : 1;
}
