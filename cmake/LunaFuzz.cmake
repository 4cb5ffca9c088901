# Fuzz targets: tests/fuzz/x.cpp becomes luna_fuzz_x, by clang's libFuzzer. What
# reads files is compiled here, instrumented; all else comes from the library
# of the release build, which is not compiled a second time.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "LUNA_FUZZ: expected clang, which has libFuzzer, got "
          "${CMAKE_CXX_COMPILER_ID}")
endif()
set(LUNA_FUZZ_LIBRARY ${CMAKE_SOURCE_DIR}/build/release/libluna.so
    CACHE FILEPATH "The library that the fuzz targets run")

file(GLOB readers CONFIGURE_DEPENDS
  src/config/*.cpp src/io/*json*.cpp src/text/*.cpp)
list(APPEND readers
  src/io/memory_map.cpp src/io/safetensors.cpp src/io/safetensors_dtype.cpp
  src/io/safetensors_header.cpp src/io/text_file.cpp src/io/weights.cpp
  src/convert/hugging_face_config.cpp src/convert/weight_names.cpp
  src/data/packed_dataset.cpp src/data/packed_format.cpp src/data/predictor.cpp
  src/data/sequences.cpp src/data/xz.cpp src/train/read_config.cpp)
set(fuzz_flags -fsanitize=address,undefined -fno-sanitize=vptr,function
    -fno-sanitize-recover=undefined)
add_library(luna_fuzzed OBJECT ${readers} tests/support/small_folders.cpp)
target_include_directories(luna_fuzzed PUBLIC include src tests)
target_compile_options(luna_fuzzed PUBLIC
  ${fuzz_flags} -fsanitize=fuzzer-no-link -fno-omit-frame-pointer)
target_link_libraries(luna_fuzzed PUBLIC
  LibTorch::torch_cpu LibTorch::c10 fmt::fmt-header-only
  nlohmann_json::nlohmann_json Xz::lzma)

add_custom_target(luna_fuzzers)
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*.cpp)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(luna_fuzz_${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(luna_fuzz_${name} PRIVATE
    luna_fuzzed ${LUNA_FUZZ_LIBRARY})
  target_link_options(luna_fuzz_${name} PRIVATE
    ${fuzz_flags} -fsanitize=fuzzer)
  add_dependencies(luna_fuzzers luna_fuzz_${name})
endforeach()
