# LibTorch out of a torch wheel, without importing it and without its CUDA half.
#
# Looked for in LUNA_TORCH_DIR (the folder `torch` of a wheel or a LibTorch
# archive), else with LUNA_PYTHON, else with the Python of a wheel build, of
# .venv in the source tree, of an active virtual environment, of the PATH.
#
# Gives LibTorch::c10, LibTorch::torch_cpu, LibTorch_VERSION, LibTorch_LIBDIR,
# and where the wheel has them the paths LibTorch_c10_cuda, LibTorch_torch_cuda.
# libtorch.so is left alone: it pulls in libtorch_cuda.

set(LUNA_TORCH_DIR "" CACHE PATH "Folder torch of a wheel")
set(LUNA_PYTHON "" CACHE FILEPATH "Python whose torch to build against")

set(LibTorch_ROOT "${LUNA_TORCH_DIR}")
if(NOT LibTorch_ROOT)
  if(LUNA_PYTHON)
    set(pythons "${LUNA_PYTHON}")
  elseif(SKBUILD AND Python_EXECUTABLE)
    set(pythons "${Python_EXECUTABLE}")
  else()
    set(pythons "${CMAKE_SOURCE_DIR}/.venv/bin/python")
    if(DEFINED ENV{VIRTUAL_ENV})
      list(APPEND pythons "$ENV{VIRTUAL_ENV}/bin/python")
    endif()
    list(APPEND pythons python3)
  endif()
  foreach(python IN LISTS pythons)
    # -I: inside pip's build isolation, look into the environment behind it.
    execute_process(
      COMMAND "${python}" -I -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE LibTorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      break()
    endif()
    set(LibTorch_ROOT "")
  endforeach()
endif()

if(LibTorch_ROOT)
  set(LibTorch_INCLUDE_DIR "${LibTorch_ROOT}/include")
  set(LibTorch_LIBDIR "${LibTorch_ROOT}/lib")
  set(header "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  if(EXISTS "${header}")
    file(STRINGS "${header}" lines
      REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." LibTorch_VERSION)
  endif()
  foreach(name c10 torch_cpu c10_cuda torch_cuda)
    if(EXISTS "${LibTorch_LIBDIR}/lib${name}.so")
      set(LibTorch_${name} "${LibTorch_LIBDIR}/lib${name}.so")
    endif()
  endforeach()
endif()

string(REPLACE ";" ", " searched "${pythons}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu LibTorch_c10 LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "no torch was found: run scripts/setup, or \
`pip install torch==2.11.0` into the Python that builds, or set LUNA_PYTHON \
or LUNA_TORCH_DIR (searched with: ${searched})")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES
    IMPORTED_LOCATION "${LibTorch_c10}"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu}"
    INTERFACE_LINK_LIBRARIES LibTorch::c10
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    # The CUDA run time behind libtorch_cpu is found when it is loaded.
    INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
endif()
