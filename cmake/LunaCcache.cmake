# ccache, where there is one, with paths relative to this tree, so that another
# clone or worktree of it finds what this one compiled.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  if(LUNA_PCH)
    add_compile_options(-fpch-preprocess) # ccache asks for it
  endif()
endif()
