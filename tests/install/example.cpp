#include <luna/version.h>

#include <cstdio>

int main() {
  std::printf("luna %s on torch %s\n", luna::version(), luna::torch_version());
}
