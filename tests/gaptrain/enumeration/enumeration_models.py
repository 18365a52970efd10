"""Four small MJCFs that have together every kind of number, each in the place of its parameter."""

from __future__ import annotations

from mjcf_places import IMPEDANCE, body, cells, friction, friction_solver, hinge, moved, passive, powers, solver


def option(more: str = "", integrator: str = "implicitfast") -> str:
    """Compiler and options, with the numbers of the world."""
    return f"""<compiler angle="radian" autolimits="true"/>
    <option timestep="0.002" integrator="{integrator}" density="{cells("option", density=1.2)}" {more}
      viscosity="{cells("option", viscosity=2e-3)}" wind="{cells("option", wind_x=0.5, wind_y=0, wind_z=0)}"
      gravity="{cells("option", gravity_x=0.1, gravity_y=0, gravity_z=-9.81)}"/>"""


def numbers(name: str, **values: float) -> str:
    """Numbers of an actuator."""
    return cells(f"actuator/{name}", **values)


_SHOULDER = f"""range="{cells("joint/shoulder", range_min=-0.2, range_max=0.25)}"
  {solver("joint/shoulder", "limit_", "limit", "0.03 0.8 0.8 0.95 0.01 0.4 3")}"""
_ELBOW = f"""springyield="{cells("joint/elbow", springyield=0.05)}"
  actuatorfrcrange="{cells("joint/elbow", actuatorfrc_limit_=0.7)} {cells("joint/elbow", actuatorfrc_limit=0.7)}" """
_RAIL = f"""<joint name="rail" type="slide" axis="1 0 0" ref="{cells("joint/rail", offset=0.01)}"
  range="{cells("joint/rail", range_min=-0.02, range_max=0.03)}" {solver("joint/rail", "limit_", "limit")}
  springref="{cells("joint/rail", springref=0)}" {moved("joint/rail", (0, 0, 0), (5, 1, 1), 0, 1)}
  {friction_solver("joint/rail")}/>"""
_SLIDER = body("slider", "0 0 -0.25", 'mass="0.5" com="0 0.01 0" spread="0.03 0.02 0.01" axes="0 2.9 0"', _RAIL)
_FORE = body(
    "fore",
    "0 0 -0.3",
    'mass="1.0" com="0 0 0" spread="0.08 0.02 0.03" axes="0 0 0"',
    hinge("elbow", _ELBOW) + '<site name="compass"/>' + _SLIDER,
    gravcomp=0.4,
)
_UPPER = body(
    "upper",
    "0 0 0",
    'mass="2.0" com="0.02 0.01 -0.15" spread="0.1 0.03 0.05" axes="0.3 -0.2 0.1"',
    hinge("shoulder", _SHOULDER) + _FORE,
)
_FLUX = f'magnetic="{cells("option", magnetic_x=0, magnetic_y=-0.5, magnetic_z=0.1)}"'
ARM = f"""<mujoco>{option(_FLUX)}
  <worldbody>{_UPPER}</worldbody>
  <actuator>
    <general name="servo" joint="shoulder" gear="{numbers("servo", gear=1.5)}" gainprm="{numbers("servo", kp=40)}"
      biastype="affine" biasprm="{numbers("servo", bias=0, kp_=40, kv_=2)}" dyntype="filterexact"
      dynprm="{numbers("servo", timeconst=0.05)}" forcerange="{numbers("servo", force_min=-8, force_max=6)}"
      nsample="5" interp="linear" delay="{numbers("servo", delay=0.004)}"/>
    <general name="motor" joint="elbow" gear="{numbers("motor", gear=3)}" gainprm="{numbers("motor", gain=1)}"
      {powers("actuator/motor", "damping", 0.01, 0, 0)} armature="{numbers("motor", armature=0)}"/>
    <general name="wheel" joint="rail" gear="{numbers("wheel", gear=1)}" gainprm="{numbers("wheel", kv=3)}"
      biastype="affine" biasprm="{numbers("wheel", bias=0.1)} 0 {numbers("wheel", kv_=3)}"/>
  </actuator>
  <sensor>
    <jointpos name="late" joint="elbow" nsample="8" interp="linear" delay="{cells("sensor/late", delay=0)}"/>
    <magnetometer site="compass"/>
  </sensor>
</mujoco>"""


_SOFT = "0.02 0.9 0.8 0.95 0.02 0.5 2"
_BALL = f"""range="0 {cells("joint/ball", range_max=0.02)}" {solver("joint/ball", "limit_", "limit", _SOFT)}"""
_BALL_SOLIMP = cells(
    "geom/ball", **dict(zip((f"contact_{k}" for k in IMPEDANCE), (0.7, 0.9, 0.05, 0.5, 2), strict=True))
)
_HAND = body(
    "hand",
    "0.1 0 -0.2",
    'mass="0.2" com="0 0.01 0" spread="0.02 0.03 0.01" axes="0 0 0"',
    f"""{hinge("wrist")}
    <geom name="ball" size="0.055" condim="1" {friction("geom/ball", 0.9, 0.03, 0.003)} solimp="{_BALL_SOLIMP}"
      solref="{cells("geom/ball", contact_stiffness_=3000, contact_damping_=20)}"/>""",
)
_SWING = body(
    "arm",
    "0.168 0 0.249",
    'mass="0.5" com="0 0.02 -0.1" spread="0.06 0.05 0.04" axes="0 0.1 0.2"',
    f"""<joint type="ball" {passive("ball", _BALL)}/>
    <geom name="tip" size="0.05" pos="0 0 -0.2" condim="4" {solver("geom/tip", "contact_", "", _SOFT)}
      friction="{cells("geom/tip", friction_slide=0.9, friction_spin=0.03)} 0.0001"/> {_HAND}""",
)
_BOX = body(
    "box",
    "0 0 0.09",
    'mass="1.0" com="0.01 0.02 -0.01" spread="0.06 0.05 0.04" axes="0.3 0.1 0.2"',
    f"""<joint type="free" {passive("root")}/> <site name="above" pos="0 0 0.1"/>
    <geom name="box" type="box" size="0.12 0.1 0.08" condim="4" {friction("geom/box", 0.6, 0.02, 0.002)}
      {solver("geom/box", "contact_", "", _SOFT)}/>
    <geom type="sphere" size="0.2" contype="0" conaffinity="0"/>""",
)
_LIFT = f"""<joint name="lift" type="slide" axis="0 0 1" ref="{cells("joint/lift", offset=0)}"
  springref="{cells("joint/lift", springref=0)}" {moved("joint/lift", (0, 0, 0), (9, 0, 0))}/>"""
# Its inertial frame is its own: MuJoCo keeps it there.
_PUCK = body("puck", "-0.5 0 0.05", 'mass="0.3" spread="0.02 0.03 0.01"', _LIFT)
_PAIR = "pair/#0"
_ROLL = cells(_PAIR, friction_roll=0.001)
CONTACTS = f"""<mujoco>{option('cone="elliptic"')}
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" condim="6" {friction("geom/floor", 0.8, 0.01, 0.001)}
      {solver("geom/floor", "contact_")}/> {_BOX} {_SWING} {_PUCK}
  </worldbody>
  <contact>
    <pair geom1="tip" geom2="floor" condim="6" {solver(_PAIR, "contact_", "", _SOFT)}
      friction="{cells(_PAIR, friction_slide_1=0.5, friction_slide_2=0.9, friction_spin=0.01)} {_ROLL} {_ROLL}"
      solreffriction="{cells(_PAIR, contact_friction_timeconst=0.03)} 1"/>
  </contact>
  <equality>
    <connect name="leash" body1="box" body2="arm" {solver("equality/leash", "")}
      anchor="{cells("equality/leash", anchor_x=0.1, anchor_y=0, anchor_z=0.05)}"/>
  </equality>
  <actuator>
    <general name="jet" site="above" gear="0 0 {numbers("jet", gear_2=1, gear_3=0.1)} 0 0"
      gainprm="{numbers("jet", gain=3)}"/>
    <adhesion name="grip" body="hand" gain="{numbers("grip", gain=2)}" ctrlrange="0 1"/>
  </actuator>
</mujoco>"""


def _pendulum(name: str, place: int, joint: str = "") -> str:
    """A weight on a hinge of its own, or on another joint."""
    inertial = 'mass="0.4" com="0.01 0.02 -0.1" spread="0.03 0.02 0.04" axes="0.1 0 0"'
    return body(name, f"{0.5 * place} 0 0", inertial, joint or hinge(name))


_KINDS = ("brush", "servo", "pid", "rate", "muscle", "damper", "piston")
# Not implicit: at its limit the torque of an orientation servo then depends on the rounding of its norm.
MOTORS = f"""<mujoco>{option(integrator="Euler")}
  <worldbody>
    {"".join(_pendulum(name, place) for place, name in enumerate(_KINDS))}
    {_pendulum("round", 7, f'<joint type="ball" {passive("round")}/>')}
  </worldbody>
  <actuator>
    <dcmotor name="brush" joint="brush" gear="{numbers("brush", gear=2)}"
      resistance="{numbers("brush", resistance=0.8)}" motorconst="{numbers("brush", motorconst=0.4)} 0"
      inductance="0 {numbers("brush", inductance_timeconst=0.01)}"
      saturation="{numbers("brush", force_limit=0.25)} 0 {numbers("brush", current_rate=30)}"
      cogging="{numbers("brush", cogging_amplitude=0.02)} 6 {numbers("brush", cogging_phase=0.5)}"
      lugre="{numbers("brush", lugre_stiffness=5, lugre_damping=0.1, lugre_coulomb=0.02, lugre_static=0.03)}
        {numbers("brush", lugre_stribeck=0.1)}"
      thermal="{numbers("brush", thermal_resistance=3, thermal_capacitance=0.02)} 0
        {numbers("brush", temperature_coefficient=0.004, reference_temperature=20, ambient_temperature=25)}"/>
    <dcmotor name="servo" joint="servo" gear="{numbers("servo", gear=1)}" input="pos vel ff"
      resistance="{numbers("servo", resistance=0.8)}" motorconst="{numbers("servo", motorconst=0.4)} 0"
      controller="{numbers("servo", kp=3, ki=2, kd=0.2, slewmax=2, imax=0.05, voltage_limit=1)}"/>
    <general name="pid" joint="pid" gear="{numbers("pid", gear=1)}" gaintype="pid" gainprm="{numbers("pid", ki=2)}"
      biastype="affine" biasprm="{numbers("pid", bias=0, kp_=3, kv_=0.1)}"
      dyntype="pid" dynprm="{numbers("pid", imax=0.05, slewmax=2)}"/>
    <general name="rate" joint="rate" gear="{numbers("rate", gear=1)}" gainprm="{numbers("rate", kp=5)}"
      biastype="affine" biasprm="{numbers("rate", bias=0.1, kp_=5, kv_=0.2)}" dyntype="integrator"/>
    <muscle name="muscle" joint="muscle" lengthrange="-1 1" gear="0.8"
      range="{numbers("muscle", range_min=0.75, range_max=1.3)}" scale="{numbers("muscle", scale=100)}"
      lmin="{numbers("muscle", lmin=0.5)}" lmax="{numbers("muscle", lmax=1.1)}" vmax="{numbers("muscle", vmax=1.5)}"
      fpmax="{numbers("muscle", fpmax=1.3)}" fvmax="{numbers("muscle", fvmax=1.2)}"
      timeconst="{numbers("muscle", timeconst_activation=0.01, timeconst_deactivation=0.04)}"
      tausmooth="{numbers("muscle", tausmooth=0)}"/>
    <general name="damper" joint="damper" gear="{numbers("damper", gear=2)}" gaintype="affine" ctrlrange="0 1"
      gainprm="{numbers("damper", gain=0, gain_length=0, gain_velocity=-0.05)}"/>
    <general name="piston" joint="piston" gear="{numbers("piston", gear=1)}" gainprm="{numbers("piston", gain=2)}"
      biastype="affine" biasprm="{numbers("piston", bias=0.1, bias_length=-0.2, bias_velocity=-0.1)}"
      dyntype="filter" dynprm="{numbers("piston", timeconst=0.1)}"/>
    <orientation name="round" joint="round" kp="{numbers("round", kp=3)}" kv="{numbers("round", kv=0.1)}"
      forcerange="0 {numbers("round", force_max=1)}"/>
  </actuator>
</mujoco>"""

_LINK = 'com="0 0 -0.1" spread="0.05 0.03 0.04" axes="0 0 0"'
_TWO = body("two", "0 0 -0.2", f'mass="0.5" {_LINK}', hinge("b"))
_ONE = body("one", "0 0 0", f'mass="1.0" {_LINK}', hinge("a") + '<site name="low" pos="0.05 0 -0.2"/>' + _TWO)
_THREE = body("three", "0.3 0 0", f'mass="0.8" {_LINK}', hinge("c"))
_CABLE, _WEAK = "tendon/cable", "0.1 0.8 0.05 0.1 0.3 0.4 3"
TENDONS = f"""<mujoco>{option()}
  <worldbody> <site name="top" pos="0.1 0 0.2"/> {_ONE} {_THREE} </worldbody>
  <tendon>
    <spatial name="cable" springlength="{cells(_CABLE, springlength_min=0.2, springlength_max=0.3)}"
      {moved(_CABLE, (0.3, 0, 0), (30, 0, 9), 0.1, 0.1)} springyield="{cells(_CABLE, springyield=0.02)}"
      {friction_solver(_CABLE)} {solver(_CABLE, "limit_", "limit", "0.03 0.8 0.8 0.95 0.01 0.4 3")}
      range="{cells(_CABLE, range_min=0.1, range_max=0.4)}"
      actuatorfrcrange="{cells(_CABLE, actuatorfrc_limit_=0.5)} {cells(_CABLE, actuatorfrc_limit=0.5)}">
      <site site="top"/><site site="low"/></spatial>
    <fixed name="sum" springlength="{cells("tendon/sum", springlength=0.1)}"
      {moved("tendon/sum", (0, 0, 0), (1, 0, 0))}>
      <joint joint="a" coef="1"/><joint joint="b" coef="-0.5"/></fixed>
    <fixed name="third" springlength="{cells("tendon/third", springlength=0)}"
      {moved("tendon/third", (0, 0, 0), (1, 0, 0))}> <joint joint="c" coef="2"/></fixed>
  </tendon>
  <equality>
    <tendon name="equal" tendon1="sum" tendon2="third" {solver("equality/equal", "")}
      polycoef="{cells("equality/equal", polycoef_0=0, polycoef_1=1, polycoef_2=0.1, polycoef_3=0, polycoef_4=0)}"/>
    <joint name="coupled" joint1="b" joint2="c" {solver("equality/coupled", "")}
      polycoef="{cells("equality/coupled", polycoef_0=0.1, polycoef_1=0.5, polycoef_2=0, polycoef_3=0)}
        {cells("equality/coupled", polycoef_4=0.1)}"/>
    <weld name="glue" body1="one" body2="three" {solver("equality/glue", "", "", _WEAK)}
      anchor="{cells("equality/glue", anchor_x=0.1, anchor_y=0, anchor_z=-0.1)}"
      relpose="{cells("equality/glue", relpose_x=0.4, relpose_y=0, relpose_z=-0.1)} 1 0 0 0"
      torquescale="{cells("equality/glue", torquescale=0.5)}"/>
    <weld name="pose" body1="two" body2="three" {solver("equality/pose", "", "", _WEAK)}
      anchor="{cells("equality/pose", anchor_x=0, anchor_y=0.1, anchor_z=0)}"
      torquescale="{cells("equality/pose", torquescale=0.1)}"/>
  </equality>
  <actuator>
    <general name="winch" tendon="cable" gear="{numbers("winch", gear=-1)}" gainprm="{numbers("winch", gain=2)}"/>
    <general name="diff" tendon="sum" gear="{numbers("diff", gear=1)}"
      gaintype="affine" gainprm="{numbers("diff", gain=1, gain_length=0.2, gain_velocity=0)}"
      biastype="affine" biasprm="{numbers("diff", bias=0, bias_length=-0.3, bias_velocity=0)}"
      {powers("actuator/diff", "damping", 0.01, 0, 0)} armature="{numbers("diff", armature=0.01)}"/>
  </actuator>
</mujoco>"""

MODELS = {"arm": ARM, "contacts": CONTACTS, "motors": MOTORS, "tendons": TENDONS}
# Parameters that change nothing in the motion of the test: the others change it, by what they are meant for.
IDLE = {
    "contacts": {"joint/ball/stiffness_cubic", "joint/lift/offset"},
    "tendons": {"tendon/cable/range_min", "tendon/cable/springlength_min", "tendon/third/stiffness_cubic"},
}
