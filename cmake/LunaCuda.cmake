# libluna_cuda.so: the ops' CUDA kernels, a library of its own that libluna
# loads where there is a device. A build of the CPU library serves everyone.
#
# LUNA_CUDA: AUTO builds it where nvcc and LibTorch's CUDA half are found, ON
# insists, OFF leaves it out.
set(LUNA_CUDA AUTO CACHE STRING "Build the CUDA library: AUTO, ON or OFF")
set(LUNA_CUDA_ARCHITECTURES "80-virtual;90-real" CACHE STRING
    "What the portable kernels are compiled for")

# Sanitizers of the host see nothing of kernels: scripts/gpu has those that do.
if(LUNA_CUDA STREQUAL OFF OR LUNA_SANITIZE)
  return()
endif()
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(LUNA_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_PATH
               PATH_SUFFIXES bin)
  if(LUNA_NVCC)
    set(CMAKE_CUDA_COMPILER ${LUNA_NVCC})
  endif()
endif()
set(missing "")
if(NOT CMAKE_CUDA_COMPILER)
  set(missing "nvcc")
elseif(NOT LibTorch_torch_cuda OR NOT LibTorch_c10_cuda)
  set(missing "libtorch_cuda (the full torch wheel has it)")
endif()
if(missing)
  if(LUNA_CUDA STREQUAL ON)
    message(FATAL_ERROR "LUNA_CUDA=ON: expected ${missing}, found none")
  endif()
  message(STATUS "CUDA library: not built, no ${missing}")
  return()
endif()

set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
set(CMAKE_CUDA_ARCHITECTURES ${LUNA_CUDA_ARCHITECTURES})
enable_language(CUDA)
# CMake 3.25 does not know nvcc's C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/ops/cuda/*.cu src/ops/cuda/*.cpp)
# These kernels are made of Hopper's own instructions.
set(hopper_sources ${cuda_sources})
list(FILTER hopper_sources INCLUDE REGEX "/(fused|softmax_wgmma)_[a-z_]+\\.cu$")
list(REMOVE_ITEM cuda_sources ${hopper_sources})
add_library(luna_hopper OBJECT ${hopper_sources})
set_target_properties(luna_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real
  POSITION_INDEPENDENT_CODE ON)
add_library(luna_cuda SHARED ${cuda_sources} $<TARGET_OBJECTS:luna_hopper>)
foreach(target luna_cuda luna_hopper)
  target_include_directories(${target} PRIVATE src
    ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -t1>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
endforeach()
if(LUNA_PCH)
  target_precompile_headers(luna_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:<ATen/ATen.h$<ANGLE-R>>"
    "$<$<COMPILE_LANGUAGE:CXX>:<torch/library.h$<ANGLE-R>>")
endif()
# --no-as-needed: libtorch_cuda registers CUDA's hooks when it is loaded.
target_link_libraries(luna_cuda PRIVATE luna
  -Wl,--push-state,--no-as-needed ${LibTorch_torch_cuda} ${LibTorch_c10_cuda}
  -Wl,--pop-state)
set_target_properties(luna_cuda PROPERTIES BUILD_RPATH "$ORIGIN"
  CUDA_SEPARABLE_COMPILATION OFF)
